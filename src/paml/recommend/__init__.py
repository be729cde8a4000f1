"""Recommend: a trained model in use.

predictor     adapt(profile, ratings) -> a user who predicts and recommends
requests      what is said of a new user, checked and encoded
catalogue     all items: names, content, how well known; found by id or title
familiarity   how likely a user knows an item, given others
explain       what each rating added to a score
elicitation   the item whose rating would help most
rate_profile  a user's rate among those of a sample of training users
stacked       members of an ensemble as one, each operation once for all of them
"""
