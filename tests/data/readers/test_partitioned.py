"""Tables that are folders of Parquet files, with partitions in their names, as Spark and DuckDB write them."""

from pathlib import Path

import polars as pl
import pytest

import paml
from commands import run
from paml.errors import DataError

SCHEMA = """\
[target]
kind = "rating"
low = 1
high = 5

[interactions]
file = "events"
user = "user"
item = "item"
target = "rating"
[interactions.context]
month = "categorical"

[users]
file = "people.csv"
key = "user"
[users.fields]
town = "categorical"
"""


@pytest.fixture
def log() -> pl.DataFrame:
    rows = [
        (month, user, item, 1 + user * item % 5)
        for month in (1, 2)
        for user in range(30)
        for item in range(month, 12, 2)
    ]
    return pl.DataFrame(rows, ["month", "user", "item", "rating"], orient="row")


@pytest.fixture
def folder(log: pl.DataFrame, tmp_path: Path) -> Path:
    """Two partitions, one of them in two files, and what Spark leaves beside them."""
    for (month,), part in log.group_by("month", maintain_order=True):
        place = tmp_path / "in" / "events" / "year=2026" / f"month={month}"
        place.mkdir(parents=True)
        half = len(part) // 2 if month == 1 else len(part)
        part[:half].drop("month").write_parquet(place / "part-0.snappy.parquet")
        if half < len(part):
            part[half:].drop("month").write_parquet(place / "part-1.snappy.parquet")
        (place / ".part-0.snappy.parquet.crc").write_bytes(b"crc")
    events = tmp_path / "in" / "events"
    (events / "_SUCCESS").touch()
    (events / "_temporary").mkdir()
    (events / "_temporary" / "half.parquet").write_bytes(b"PAR1")
    (events / ".hidden.parquet").write_bytes(b"no Parquet at all")
    people = pl.DataFrame({"user": range(30), "town": [f"t{user % 3}" for user in range(30)]})
    people.write_csv(events.parent / "people.csv")
    (events.parent / "schema.toml").write_text(SCHEMA)
    return events.parent


def test_the_same_data_set_as_from_one_file(folder: Path, log: pl.DataFrame, tmp_path: Path) -> None:
    """Partitions are columns, and the other table may be CSV."""
    found = paml.prepare("tables", schema=folder / "schema.toml", out=tmp_path / "many")
    one = tmp_path / "one"
    one.mkdir()
    log.write_parquet(one / "events.parquet")
    (one / "people.csv").write_bytes((folder / "people.csv").read_bytes())
    (one / "schema.toml").write_text(SCHEMA.replace('"events"', '"events.parquet"'))
    expected = paml.prepare("tables", schema=one / "schema.toml", out=tmp_path / "expected")
    assert found.fingerprint == expected.fingerprint
    assert found.manifest.source.checksum != expected.manifest.source.checksum
    assert set(found.interactions().collect()["month"]) == {"1", "2"}
    with_path = paml.prepare("tables", folder, tmp_path / "path")  # the folder that has the schema
    assert with_path.fingerprint == expected.fingerprint


def test_every_file_counts(folder: Path, tmp_path: Path) -> None:
    before = paml.prepare("tables", folder, tmp_path / "before")
    assert paml.prepare("tables", folder, tmp_path / "before", reuse=True).path == before.path
    part = folder / "events" / "year=2026" / "month=1" / "part-1.snappy.parquet"
    pl.read_parquet(part).with_columns(rating=6 - pl.col("rating")).write_parquet(part)
    after = paml.prepare("tables", folder, tmp_path / "after")
    assert after.manifest.source.checksum != before.manifest.source.checksum
    assert after.fingerprint != before.fingerprint


def test_a_folder_is_inspected_as_one_table(folder: Path, tmp_path: Path) -> None:
    done = run("data", "inspect", "in/events", "in/people.csv", "--out", "in/guess.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (folder / "guess.toml").read_text()
    assert 'file = "events"' in text
    assert 'user = "user"' in text
    assert "month" in text
    done = run("data", "prepare", "tables", "--schema", "in/guess.toml", "--out", "D", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_partitions_are_those_below_the_folder(folder: Path, tmp_path: Path) -> None:
    """A folder above may have such a name by chance."""
    odd = tmp_path / "run=7"
    folder.rename(odd)
    guessed = paml.inspect([odd / "events"])
    assert "# run =" not in guessed
    assert "# year =" in guessed  # left out, because it has one value
    assert paml.prepare("tables", odd, tmp_path / "data").manifest.items == 11


def test_files_that_do_not_fit_each_other(folder: Path, tmp_path: Path) -> None:
    part = folder / "events" / "year=2026" / "month=1" / "part-1.snappy.parquet"
    pl.read_parquet(part).rename({"rating": "stars"}).write_parquet(part)
    with pytest.raises(DataError, match=r"events: its Parquet files cannot be read as one table .*; write them with"):
        paml.prepare("tables", folder, tmp_path / "data")
    with pytest.raises(DataError, match="events: its Parquet files cannot be read as one table"):
        paml.inspect([folder / "events"])
    part.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="events: its Parquet files cannot be read as one table"):
        paml.prepare("tables", folder, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_folder_without_parquet_is_no_table(folder: Path, tmp_path: Path) -> None:
    (folder / "schema.toml").write_text(SCHEMA.replace('"events"', '"none"'))
    (folder / "none").mkdir()
    (folder / "none" / "notes.txt").write_text("x")
    with pytest.raises(DataError, match="has no file 'none'"):
        paml.prepare("tables", schema=folder / "schema.toml", out=tmp_path / "data")
    with pytest.raises(DataError, match="is a folder without Parquet files; name the files in it"):
        paml.inspect([folder / "none"])


def test_partitions_are_text_as_it_is_written(folder: Path, log: pl.DataFrame, tmp_path: Path) -> None:
    """007 is not 7, and a day is no number of seconds."""
    when = pl.when(pl.col("user") < 9).then(pl.lit("2017-10-01")).otherwise(pl.lit("2017-10-02"))
    log = log.with_columns(month=pl.format("00{}", "month"), day=when).sort("month", "day", maintain_order=True)
    schema = SCHEMA.replace('month = "categorical"', 'month = "categorical"\nday = "categorical"')
    for place in (folder, tmp_path / "one"):
        place.mkdir(exist_ok=True)
        (place / "people.csv").write_bytes((folder / "people.csv").read_bytes())
        (place / "schema.toml").write_text(schema.replace('"events"', '"log"'))
    for (month, day), part in log.group_by("month", "day", maintain_order=True):
        where = folder / "log" / f"month={month}" / f"day={day}"
        where.mkdir(parents=True)
        part.drop("month", "day").write_parquet(where / "part-0.parquet")
    log.write_parquet(tmp_path / "one" / "log")
    many, one = (
        paml.prepare("tables", schema=place / "schema.toml", out=tmp_path / name)
        for name, place in (("a", folder), ("b", tmp_path / "one"))
    )
    assert set(many.interactions().collect()["day"]) == {"2017-10-01", "2017-10-02"}
    assert many.fingerprint == one.fingerprint
