"""The network: users, items and contexts as vectors, and the decision layers theta.

embeddings  vectors of fields
items       vectors of items: fields side by side, or a sum
affinity    what items that share a value, such as an author, say of each other
user_prior  where a user begins: what the profile and the choice of items say
network     all of it together, and the decision layers
build       a network generated from a data set's fields and vocabulary
"""
