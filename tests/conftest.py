"""A small synthetic world, prepared once, and small tables written in exactly the format that users have."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import paml

torch.set_num_threads(1)  # the tensors of the tests are small: a second thread only costs time

SCHEMA_TOML = """\
[target]
kind = "rating"
low = 1
high = 5

[interactions]
file = "ratings.csv"
user = "uid"
item = "movie"
target = "stars"
time = "when"

[users]
file = "users.csv"
key = "uid"
[users.fields]
gender = "categorical"
age = { kind = "categorical", minimum = 10, maximum = 100 }
town = { kind = "categorical", column = "home town" }

[items]
file = "movies.csv"
key = "movie"
[items.fields]
title = "identifier"
genres = "multi"
price = "numeric"
"""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> paml.PreparedData:
    return paml.prepare("synthetic", out=tmp_path_factory.mktemp("world") / "data", users=400, items=80)


@pytest.fixture(scope="session")
def click_world(tmp_path_factory: pytest.TempPathFactory) -> paml.PreparedData:
    out = tmp_path_factory.mktemp("clicks") / "data"
    return paml.prepare("synthetic", out=out, users=400, items=80, target="click")


def write_tables(folder: Path, users: int = 20, items: int = 12) -> Path:
    """Twenty users, each with as many ratings as their number allows, in CSV files with a schema."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schema.toml").write_text(SCHEMA_TOML)
    people = [f'{u},{"MF"[u % 2]},{20 + u % 3},"Town, {u % 4}"' for u in range(users)]
    (folder / "users.csv").write_text("\n".join(["uid,gender,age,home town", *people]) + "\n")
    films = [f'{i},"The ""Film"" {i}",drama|genre{i % 3},{i}.5' for i in range(items)]
    (folder / "movies.csv").write_text("\n".join(["movie,title,genres,price", *films]) + "\n")
    log = [
        f"{u},{i},{1 + (u + i) % 5},{1000 + i}" for u in range(users) for i in range(items) if (u + i) % 12 < 3 + u // 3
    ]
    (folder / "ratings.csv").write_text("\n".join(["uid,movie,stars,when", *log]) + "\n")
    return folder


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
