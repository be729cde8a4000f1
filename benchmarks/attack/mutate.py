"""Random changes to one file of a folder: of bytes, of JSON values, of tables, of its kind, or for another file."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

Change = Callable[[Path, Path, np.random.Generator], str]
"""Changes a file, given the folder of a sibling's files; says what it did."""


def linked_copy(source: Path, target: Path) -> list[Path]:
    """A copy of a folder by links, all its files; whoever changes one replaces it first."""
    shutil.copytree(source, target, copy_function=os.link)
    return sorted(file for file in target.rglob("*") if file.is_file())


def change_one(folder: Path, files: list[Path], sibling: Path, rng: np.random.Generator) -> str:
    """Change one of the files in one way."""
    file = files[rng.integers(len(files))]
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)
    ways = [
        *BYTES * 2,
        *KINDS,
        *({".json": [_json] * 6, ".parquet": [_table] * 3, ".npy": [_array] * 3}.get(file.suffix, [])),
    ]
    way = ways[rng.integers(len(ways))]
    return f"{file.relative_to(folder)}: {way(file, sibling / file.relative_to(folder), rng)}"


def _flip(file: Path, _: Path, rng: np.random.Generator) -> str:
    data = bytearray(file.read_bytes())
    where, bit = int(rng.integers(len(data))), int(rng.integers(8))
    data[where] ^= 1 << bit
    file.write_bytes(data)
    return f"bit {bit} of byte {where} flipped"


def _zero(file: Path, _: Path, rng: np.random.Generator) -> str:
    data = bytearray(file.read_bytes())
    start = int(rng.integers(len(data)))
    end = min(start + int(rng.integers(1, 4097)), len(data))
    data[start:end] = bytes(end - start)
    file.write_bytes(data)
    return f"bytes {start} to {end} zeroed"


def _cut(file: Path, _: Path, rng: np.random.Generator) -> str:
    data = file.read_bytes()
    keep = int(rng.integers(len(data)))
    file.write_bytes(data[:keep])
    return f"cut after {keep} bytes"


def _grow(file: Path, _: Path, rng: np.random.Generator) -> str:
    data, more = file.read_bytes(), rng.bytes(int(rng.integers(1, 100)))
    where = int(rng.integers(len(data) + 1))
    file.write_bytes(data[:where] + more + data[where:])
    return f"{len(more)} bytes inserted at {where}"


def _swap(file: Path, _: Path, rng: np.random.Generator) -> str:
    data = bytearray(file.read_bytes())
    size = int(rng.integers(1, max(2, min(1024, len(data) // 2))))
    a, b = (int(rng.integers(max(1, len(data) - size))) for _ in range(2))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    file.write_bytes(data)
    return f"{size} bytes at {a} and {b} exchanged"


def _sibling(file: Path, other: Path, _: np.random.Generator) -> str:
    shutil.copyfile(other, file)
    return "the sibling's file"


def _neighbour(file: Path, _: Path, rng: np.random.Generator) -> str:
    others = sorted(one for one in file.parent.iterdir() if one.is_file() and one != file)
    if others:
        shutil.copyfile(others[rng.integers(len(others))], file)
    return "another file of the folder"


def _missing(file: Path, _: Path, __: np.random.Generator) -> str:
    file.unlink()
    return "removed"


def _folder(file: Path, _: Path, __: np.random.Generator) -> str:
    file.unlink()
    file.mkdir()
    return "a folder"


def _pipe(file: Path, _: Path, __: np.random.Generator) -> str:
    file.unlink()
    os.mkfifo(file)
    return "a pipe"


def _device(file: Path, _: Path, __: np.random.Generator) -> str:
    file.unlink()
    file.symlink_to("/dev/zero")
    return "a link to /dev/zero"


def _empty(file: Path, _: Path, __: np.random.Generator) -> str:
    file.write_bytes(b"")
    return "emptied"


def _json(file: Path, _: Path, rng: np.random.Generator) -> str:
    """Change, remove or add a value somewhere in a JSON file."""
    try:
        values: Any = json.loads(file.read_text())
    except ValueError:
        return "not JSON, unchanged"
    at, path = values, []
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return "nothing to change"
        key = keys[rng.integers(len(keys))]
        path.append(key)
        if not isinstance(at[key], dict | list) or not at[key] or rng.random() < 0.1:
            break
        at = at[key]
    odd = (None, True, 0, -1, 10**9, 10**400, 1e308, "", "x" * 1000, [], {}, [[]], "\ud800", "../../etc/passwd")
    if rng.random() < 0.2:
        del at[key]
    elif isinstance(at[key], int | float) and rng.random() < 0.5:
        at[key] = at[key] + 1
    elif isinstance(at[key], list) and len(at[key]) > 1 and rng.random() < 0.5:
        at[key] = at[key][::-1]
    else:
        at[key] = odd[rng.integers(len(odd))]
    file.write_text(json.dumps(values))
    return f"JSON at {path}"


def _table(file: Path, _: Path, rng: np.random.Generator) -> str:
    """Write the table again with one column in another order."""
    table = pl.read_parquet(file)
    name = table.columns[rng.integers(len(table.columns))]
    order = rng.permutation(len(table))
    table.with_columns(table[name].gather(order)).write_parquet(file)
    return f"column '{name}' shuffled"


def _array(file: Path, _: Path, rng: np.random.Generator) -> str:
    """Write the array again: backwards, mirrored, or of another type."""
    values = np.load(file)
    way = int(rng.integers(3))
    if way == 0:
        np.save(file, values[::-1])
    elif way == 1 and len(values):
        np.save(file, values.max() - values if values.dtype != bool else ~values)
    else:
        np.save(file, values.astype(np.float64))
    return ("reversed", "mirrored", "as float64")[way]


BYTES: list[Change] = [_flip, _flip, _zero, _cut, _grow, _swap]
KINDS: list[Change] = [_sibling, _sibling, _neighbour, _missing, _folder, _pipe, _device, _empty]
