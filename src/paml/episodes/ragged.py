"""Lists of different lengths, stored end to end: the arithmetic of offsets, counts and positions, in one place.

n lists have counts c_1 .. c_n; list i begins at offset o_i = c_1 + .. + c_(i-1).
Legend: n lists, T values of all lists.
"""

import numpy as np
import torch
from torch import Tensor


def starts(count_n: np.ndarray) -> np.ndarray:
    """Where each list begins."""
    start_n: np.ndarray = np.cumsum(count_n) - count_n
    return start_n


def owners(count_n: np.ndarray) -> np.ndarray:
    """The list that each value belongs to, (T)."""
    return np.repeat(np.arange(len(count_n)), count_n)


def places(count_n: np.ndarray) -> np.ndarray:
    """The index of each value within its list: 0, 1, ..., (T)."""
    place_T: np.ndarray = np.arange(count_n.sum()) - np.repeat(starts(count_n), count_n)
    return place_T


def positions(first_n: np.ndarray, count_n: np.ndarray) -> np.ndarray:
    """Positions of the `count` values from `first` on, list by list: picks some lists out of many, (T)."""
    position_T: np.ndarray = np.arange(count_n.sum()) + np.repeat(first_n - starts(count_n), count_n)
    return position_T


def tensor_positions(first_n: Tensor, count_n: Tensor) -> tuple[Tensor, Tensor]:
    """The same for tensors, and where each list begins in the result."""
    start_n = count_n.cumsum(0) - count_n
    place_T = torch.arange(int(count_n.sum()), device=first_n.device)
    return place_T + torch.repeat_interleave(first_n - start_n, count_n), start_n


def shuffled(first_n: np.ndarray, count_n: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same positions, in random order within each list; the lists stay in order, (T)."""
    owner_T = owners(count_n)
    order_T = np.argsort(owner_T + rng.random(len(owner_T)))
    position_T: np.ndarray = order_T + (first_n - starts(count_n))[owner_T]
    return position_T
