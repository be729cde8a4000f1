"""The network: users, items and contexts as vectors, and the decision layers theta.

embeddings  vectors of fields
items       vectors of items: fields side by side, or a sum
affinity    what a rating says about items that share a value, such as an author
user_prior  the prior of a user's weights, from the profile and the choice of items
network     all of it together, and the decision layers
build       a network generated from a data set's fields and vocabulary
"""
