"""Small data sets, prepared once in a process and removed when it ends."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from paml.data.dataset import Dataset
from paml.data.prepare import prepare


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="paml-worlds-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _world(name: str, target: str, users: int, items: int, user_ratio: str) -> Dataset:
    settings = {"users": users, "items": items, "target": target, "user_ratio": user_ratio}
    return prepare("synthetic", out=_folder() / f"{name}-{target}", progress=False, settings=settings)


def small_world(target: str = "rating") -> Dataset:
    """The embedded world of ratings, clicks or choices, with 80 items."""
    return _world("small", target, 400, 80, "7:1:2")


def sparse_world(target: str) -> Dataset:
    """Few users and many items, so that some items have no training row; no validation users."""
    return _world("sparse", target, 60, 300, "6:0:4")


@cache
def changed_world(target: str) -> Dataset:
    """The small world with test users who rated other items, and differently; training users are the same."""
    data = small_world(target)
    folder = Path(shutil.copytree(data.path, _folder() / f"changed-{target}"))
    first = data.array("offsets")[data.manifest.splits["test"][0]]
    values, items = data.array("target").copy(), data.array("item").copy()
    values[first:] = 6 - values[first:] if target == "rating" else values[first:][::-1]
    items[first:] = items[first:][::-1]
    np.save(folder / "arrays" / "target.npy", values)
    np.save(folder / "arrays" / "item.npy", items)
    return Dataset.open(folder)
