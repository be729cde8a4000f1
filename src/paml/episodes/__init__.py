"""Episodes: users as tasks, ragged support and query sets as tensors.

ragged    offset arithmetic for lists stored end to end, in one place
tasks     users -> ragged batches, bucketed by length
features  encoded fields of some users, items or rows as tensors
histories  what users rated or clicked, as weights of items
hashing   values as hash buckets, without a vocabulary
candidates  the items that a choice is made from in training: all, or a sample
batches   task batches as tensors: the engine's input
"""
