"""Training: the outer loop, and runs on disk.

recipe      all settings of a training run; recipes/*.toml are the named ones
keywords    settings as keyword arguments, for type checkers
sizing      settings that depend on the size of the data, by rule
train       a run: its parts one after the other, then what lists are ordered by
loop        the only outer loop; resumable
position    where a training is, without its tensors
ahead       the next batch, made while somebody is waited for
loggers     epochs logged to TensorBoard, MLflow, Weights & Biases
merging     the networks of a trained part as one
optim       the outer optimiser: weight decay, and the schedule of its rate
ranks       several processes that train one run together, by torchrun
restarts    which run a job of torchrun goes on with after a restart
parallel    what these exchange
rowwise     Adam for large tables: only the rows that a batch reads
ema         weights averaged over steps
capacity    what this machine cannot hold, as one line with a remedy
device      the CPU, or a GPU
allocator   freed memory kept for the next step
checkpoint  tensors and values in one file, atomic, checked
run         a run on disk: settings, weights, vocabulary
anew        the command that trains a run of another version again
show        a run in a notebook
preference  what lists are ordered by: counted on training users, weighted on validation users
"""
