"""Episodes: users as tasks, ragged support and query sets as tensors.

ragged    offset arithmetic of rows laid end to end, in one place
tasks     users -> ragged batches, bucketed by length
features  encoded fields of some users, items or rows as tensors
hashing   values as hash buckets, without a vocabulary
batches   task batches as tensors: what the engine takes
"""
