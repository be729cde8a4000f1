"""Keep freed memory for the next step.

glibc returns the top of the heap to the system whenever more than a little is free, so every training step would pay
for fresh, zeroed pages again: a fifth of the step at the paper's sizes (compare with PAML_KEEP_MEMORY=0).
"""

import ctypes
import os
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # parameters of mallopt(3)


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep up to 1 GiB of freed memory in the process; elsewhere do nothing."""
    if not sys.platform.startswith("linux") or os.environ.get("PAML_KEEP_MEMORY") == "0":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    wanted = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 1 << 30, TOP_PAD: 64 << 20}
    accepted = [mallopt(parameter, value) == 1 for parameter, value in wanted.items()]
    return all(accepted)


def return_freed_memory() -> None:
    """Give back what is kept, before memory is measured: otherwise it would count for what was done before."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is not None:
        trim(0)
