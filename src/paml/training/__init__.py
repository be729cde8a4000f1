"""Training: the outer loop, and runs on disk.

recipe      all settings of a training; recipes/*.toml are named ones
loop        the outer loop, the only one; resumable
optim       the outer optimiser: what decays, and how its rate falls
ema         weights averaged over steps
allocator   freed memory kept for the next step
checkpoint  tensors and values in one file, atomic, checked
run         a run on disk: settings, weights, vocabulary
"""
