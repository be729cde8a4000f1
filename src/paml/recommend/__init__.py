"""Recommend: a trained model in use.

predictor     adapt(profile, ratings) -> a user
plan          what answers for networks of one layer: all members side by side, few operations per user
solo          the same user by user, in NumPy, where somebody waits
threads       how many threads answers may use
fields        profiles and contexts as rows of one table
members       what answers otherwise, and knows the steps of adapting: members one after another
user          a user who predicts and recommends, and why
best          the highest of many scores
preference    what lists are ordered by: choice, what goes with what, popularity by profile, predicted rating
ordering      the same in few operations, for new users
candidates    a large catalogue's items that may be the best, found by an index
sample_users  users made up to measure that with
requests      a new user's profile and ratings, checked and encoded
catalogue     all items: names, content, how well known; found by id or title
familiarity   how likely a user is to know an item, given others
explain       what each rating added to a score
elicitation   the item whose rating would help most
rate_profile  a user's rate compared with a sample of training users
show          users and recommendations in a notebook
"""
