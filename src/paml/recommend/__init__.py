"""Recommend: a trained model in use.

predictor     adapt(profile, ratings) -> a user
user          a user who predicts and recommends, and why
preference    what lists are ordered by: choice, what goes with what, popularity by profile, predicted rating
requests      a new user's profile and ratings, checked and encoded
catalogue     all items: names, content, how well known; found by id or title
familiarity   how likely a user is to know an item, given others
explain       what each rating added to a score
elicitation   the item whose rating would help most
rate_profile  a user's rate compared with a sample of training users
stacked       members of an ensemble as one: each operation runs once for all of them
"""
