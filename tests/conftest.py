"""A small synthetic world, prepared once, and small tables written in exactly the format that users have."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import paml
from smalltables import write_tables

torch.set_num_threads(1)  # the tensors of the tests are small: a second thread only costs time


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> paml.PreparedData:
    return paml.prepare("synthetic", out=tmp_path_factory.mktemp("world") / "data", users=400, items=80)


@pytest.fixture(scope="session")
def click_world(tmp_path_factory: pytest.TempPathFactory) -> paml.PreparedData:
    out = tmp_path_factory.mktemp("clicks") / "data"
    return paml.prepare("synthetic", out=out, users=400, items=80, target="click")


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return write_tables(tmp_path / "tables")


@pytest.fixture
def edit(tables: Path) -> Callable[[str, str, str], Path]:
    """Replace text in one of the table files, once; returns the folder."""

    def apply(file: str, old: str, new: str) -> Path:
        path = tables / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        return tables

    return apply
