"""How many threads answers may use: PyTorch's, for many users at once, and those of NumPy's matrix products."""

import torch
from threadpoolctl import threadpool_limits


def use_threads(count: int) -> None:
    """Let PyTorch use this many threads, 0 leaves it one per core; NumPy multiplies in the thread that asks.

    A single user's products (solo.py) take some microseconds, and helpers that wait for them would only heat cores.
    """
    if count:
        torch.set_num_threads(count)
    threadpool_limits(1, user_api="blas")
