"""Random changes to CSV files: preparing them is refused, or they were read as Python's own csv module reads them."""

import csv
import io
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import paml
from benchmarks.attack.cases import Case, arguments, attempt, command, report, watched

FILES = ("ratings.csv", "users.csv", "movies.csv")
SCHEMA = """
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
town = "categorical"
[items]
file = "movies.csv"
key = "movie"
[items.fields]
title = "identifier"
genres = "multi"
price = "numeric"
"""
MIN_ROWS = 2
SETTINGS = {"cold_share": 1, "min_interactions": MIN_ROWS, "drop_invalid_profiles": False}
SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
RETURN = "\ue00d"  # a lone carriage return, which is white space here and ends a line for the csv module
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
ODD = [
    b'"', b'""', b",", b"\n", b"\r", b"\r\n", b"\x00", b"\xff", b"\xe9", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f", b"\x1e",
    b"\\", b"'", b";", b"\t", b"\x1a", b"\xc2\xa0", b"\xe2\x80\xa8", b"\xed\xa0\x80", b"nan", b"1e999", b"-0", b"2.5",
    b"9" * 400, b"x" * 100_000, b'"' * 7, b"\n" * 50, "\N{SNOWMAN}".encode(),
    "\N{RIGHT-TO-LEFT OVERRIDE}".encode(), b"\x1b[31m",
]  # fmt: skip


def write(folder: Path) -> Path:
    """Small tables, some of their fields quoted."""
    folder.mkdir()
    (folder / "schema.toml").write_text(SCHEMA)
    people = [f'{u},{"MF"[u % 2]},{20 + u % 3},"Town, {u % 4}"' for u in range(12)]
    films = [f'{i},"The ""Film"" {i}",drama|genre{i % 3},{i}.5' for i in range(8)]
    log = [f"{u},{i},{1 + (u + i) % 5},{1000 + i}" for u in range(12) for i in range(8) if (u + i) % 8 < 3 + u // 3]
    heads = ("uid,movie,stars,when", "uid,gender,age,town", "movie,title,genres,price")
    for name, head, lines in zip(FILES, heads, (log, people, films), strict=True):
        (folder / name).write_text("\n".join([head, *lines]) + "\n")
    return folder


def change(file: Path, rng: np.random.Generator) -> str:
    """Change the bytes of a file in one to three ways."""
    data, told = file.read_bytes(), []
    for _ in range(rng.integers(1, 4)):
        way, at = int(rng.integers(8)), int(rng.integers(len(data) + 1))
        lines = data.splitlines(keepends=True)
        line = int(rng.integers(max(len(lines), 1)))
        if way == 0 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
        elif way in (1, 2, 3):
            data = data[:at] + ODD[rng.integers(len(ODD))] + data[at:]
        elif way == 4:
            data = data[:at] + data[at + int(rng.integers(1, 9)) :]
        elif way == 5 and lines:
            data = b"".join([*lines[:line], lines[line], *lines[line:]])
        elif way == 6 and lines:
            data = b"".join([*lines[:line], *lines[line + 1 :]])
        elif way == 7:
            coding = ("utf-16", "utf-32", "utf-8-sig", "utf-16-le", "cp037", "utf-7")[rng.integers(6)]
            data = data.decode("latin-1").encode(coding, "replace")
        told.append(f"{way} at {at}")
    file.write_bytes(data)
    return f"{file.name}: {', '.join(told)}"


def records(path: Path) -> list[dict[str, str | None]]:
    """The rows of a file by Python's csv module; ValueError if they are not those of a clean file."""
    text = path.read_bytes().decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", RETURN)
    head, *rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    names = [name.replace(RETURN, "\r").strip(SPACE) for name in head]
    if any(len(row) != len(names) for row in rows):
        raise ValueError("a row of another width")
    values = ([value.replace(RETURN, "\r").strip(SPACE) or None for value in row] for row in rows)
    return [dict(zip(names, row, strict=True)) for row in values]


def number(text: str | None) -> float:
    """A number as text."""
    if text is None or not NUMBER.fullmatch(text):
        raise ValueError(f"not a number: {text!r}")
    return float(text)


def key(text: str | None) -> str:
    """A key, in which 7.0 is 7."""
    if text is None:
        raise ValueError("no key")
    return re.sub(r"^(-?[0-9]+)\.0+$", r"\1", text)


def expected(folder: Path) -> dict[str, Any]:
    """What a data set of these files holds."""
    log: dict[tuple[str, str], tuple[float, float]] = {}
    for row in records(folder / "ratings.csv"):
        place, found = (key(row["uid"]), key(row["movie"])), (number(row["stars"]), number(row["when"]))
        if place not in log or found[1] >= log[place][1]:
            log[place] = found
    people = {key(row["uid"]): (row["gender"], _age(row["age"]), row["town"]) for row in records(folder / "users.csv")}
    count = Counter(user for user, _ in log)
    log = {place: found for place, found in log.items() if count[place[0]] >= MIN_ROWS}
    rated = {user for user, _ in log}
    films = {
        key(row["movie"]): (row["title"], _list(row["genres"]), None if row["price"] is None else number(row["price"]))
        for row in records(folder / "movies.csv")
    }
    return {"log": log, "users": {user: people.get(user, (None, None, None)) for user in rated}, "items": films}


def _age(text: str | None) -> str | None:
    return text if text is not None and NUMBER.fullmatch(text) and 10 <= float(text) <= 100 else None


def _list(text: str | None) -> list[str]:
    return [one for part in (text or "").split("|") if (one := part.strip(SPACE))]


def found(data: paml.Dataset) -> dict[str, Any]:
    """What the prepared data set holds."""
    users, items = data.users().collect(), data.items().collect()
    rows = data.interactions().collect()
    log = {
        (users["user"][row["user"]], items["item"][row["item"]]): (row["target"], row["time"])
        for row in rows.iter_rows(named=True)
    }
    return {
        "log": log,
        "users": {row["user"]: (row["gender"], row["age"], row["town"]) for row in users.iter_rows(named=True)},
        "items": {
            row["item"]: (row["title"], row["genres"] or [], row["price"]) for row in items.iter_rows(named=True)
        },
    }


def compared(folder: Path, out: Path) -> tuple[str, str]:
    """Prepare the tables, and compare what was read with another reader's reading."""
    have = found(paml.prepare("tables", folder, out, settings=SETTINGS))
    try:
        want = expected(folder)
    except (ValueError, csv.Error, KeyError, UnicodeError) as error:
        return "wrong", f"prepared, though {error!r}"
    return ("same", "") if have == want else ("wrong", _difference(have, want))


def _difference(have: dict[str, Any], want: dict[str, Any]) -> str:
    for part in want:
        for name in {**have[part], **want[part]}:
            if have[part].get(name) != want[part].get(name):
                return f"{part} {name}: {have[part].get(name)!r:.200} instead of {want[part].get(name)!r:.200}"
    return "?"


def prepared(folder: Path, seed: int) -> Case:
    """Tables that are read correctly."""
    whole = write(folder / "tables")

    def case(number: int) -> tuple[str, str]:
        rng, copy, out = np.random.default_rng([seed, number]), folder / f"case-{number}", folder / f"out-{number}"
        shutil.copytree(whole, copy)
        what = change(copy / FILES[rng.integers(3)], rng) if number else "unchanged"
        kind, text = attempt(lambda: compared(copy, out), (paml.PamlError,))
        if kind in ("refused", "same"):
            looked, said = attempt(lambda: command("data", "inspect", *(copy / name for name in FILES)), ())
            kind, text = (looked, said) if looked == "traceback" else (kind, text)
        for path in (copy, out):
            shutil.rmtree(path, ignore_errors=True)
        return kind if number or kind == "same" else "wrong", f"{what}: {text}"

    return case


def main() -> None:
    """Change tables many times."""
    given = arguments(4000)
    report("changed tables", given.seed, watched("benchmarks.attack.tables", range(given.count), given.seed))


if __name__ == "__main__":
    main()
