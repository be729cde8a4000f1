"""A second call: what is there is returned if it would be made again, and anything else is refused by name."""

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import paml
from paml.data import prepare as preparing
from paml.errors import FormatError, PamlError, SettingsError
from paml.locks import hold
from smalltables import write_tables

SMALL: dict[str, Any] = {"users": 150, "items": 30}


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """What is in a folder, and when it was written."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file): (file.stat().st_mtime_ns, file.stat().st_ino) for file in files}


@pytest.fixture(scope="module")
def ratings() -> pl.DataFrame:
    rows = [(user, item, 1 + user * item % 5, 1000 + user) for user in range(30) for item in range(10)]
    return pl.DataFrame(rows, ["user", "item", "rating", "when"], orient="row")


def test_the_same_call_returns_what_is_there(tmp_path: Path) -> None:
    first = paml.prepare("synthetic", out=tmp_path / "data", reuse=True, **SMALL)
    before = state(tmp_path)
    again = paml.prepare("synthetic", out=tmp_path / "data", reuse=True, **SMALL)
    assert again.fingerprint == first.fingerprint
    assert state(tmp_path) == before
    with pytest.raises(PamlError, match="already exists"):
        paml.prepare("synthetic", out=tmp_path / "data", **SMALL)


def test_other_settings_are_refused_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paml.prepare("synthetic", out=tmp_path / "data", **SMALL)
    before = state(tmp_path)
    monkeypatch.setattr(preparing.Preparation, "load", lambda *_: pytest.fail("the source was read"))
    wrong = {"users": 151, "items": 30, "min_interactions": 5}
    message = (
        r"data: was prepared with other settings \(users was 150, now 151; min_interactions was \d+, now 5\); repeat"
    )
    with pytest.raises(SettingsError, match=message):
        paml.prepare("synthetic", out=tmp_path / "data", reuse=True, settings=wrong)
    with pytest.raises(SettingsError, match=r"source was synthetic, now tables; .* and \d+ more"):
        paml.prepare("tables", write_tables(tmp_path / "own"), tmp_path / "data", reuse=True)
    assert {name: found for name, found in state(tmp_path).items() if "/own/" not in name} == before


def test_the_same_files_are_not_prepared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = write_tables(tmp_path / "own")
    first = paml.prepare("tables", own, tmp_path / "data")
    with monkeypatch.context() as watched:
        watched.setattr(preparing.Preparation, "write", lambda *_: pytest.fail("it was prepared again"))
        assert paml.prepare("tables", own, tmp_path / "data", reuse=True).fingerprint == first.fingerprint
    quoted = (own / "ratings.csv").read_text().replace("0,1,2,", '"0",1,2,')
    assert quoted != (own / "ratings.csv").read_text()
    (own / "ratings.csv").write_text(quoted)  # says the same
    assert paml.prepare("tables", own, tmp_path / "data", reuse=True).fingerprint == first.fingerprint
    lines = quoted.splitlines(keepends=True)
    (own / "ratings.csv").write_text("".join(lines[:-1]))
    with pytest.raises(SettingsError, match=r"was prepared from other data \(20 users, 12 items, (\d+) rows; now 20"):
        paml.prepare("tables", own, tmp_path / "data", reuse=True)
    assert {one.name for one in tmp_path.iterdir()} == {"data", "own"}


@pytest.mark.parametrize("lazy", [False, True])
def test_frames_are_compared_by_content(ratings: pl.DataFrame, tmp_path: Path, *, lazy: bool) -> None:
    given: Any = ratings.lazy() if lazy else ratings
    first = paml.prepare(interactions=given, out=tmp_path / "data", reuse=True)
    assert paml.prepare(interactions=given, out=tmp_path / "data", reuse=True).path == first.path
    assert paml.prepare(interactions=ratings.to_pandas(), out=tmp_path / "data", reuse=True).path == first.path
    mirrored = ratings.with_columns(rating=6 - pl.col("rating"))
    with pytest.raises(SettingsError, match=r"was prepared from other data .of the same size, but with fingerprint"):
        paml.prepare(interactions=mirrored, out=tmp_path / "data", reuse=True)


def test_another_reading_of_the_same_frame_is_refused(ratings: pl.DataFrame, tmp_path: Path) -> None:
    target = {"kind": "rating", "low": 1, "high": 5}
    schema = {"target": target, "interactions": {"user": "user", "item": "item", "target": "rating"}}
    paml.prepare(interactions=ratings, schema=schema, out=tmp_path / "data")
    swapped = {"target": target, "interactions": {"user": "item", "item": "user", "target": "rating"}}
    with pytest.raises(SettingsError, match="was prepared from other data"):
        paml.prepare(interactions=ratings, schema=swapped, out=tmp_path / "data", reuse=True)


def test_dates_that_the_log_decides_and_dates_that_are_given(ratings: pl.DataFrame, tmp_path: Path) -> None:
    by_time: dict[str, Any] = {"interactions": ratings, "out": tmp_path / "data", "split": "time"}
    first = paml.prepare(**by_time)
    found = first.manifest.protocol.test_from
    assert found is not None
    assert paml.prepare(**by_time, reuse=True).fingerprint == first.fingerprint
    assert paml.prepare(**by_time, test_from=found, reuse=True).fingerprint == first.fingerprint
    with pytest.raises(SettingsError, match=r"was prepared with other settings .test_from was .*, now"):
        paml.prepare(**by_time, test_from="1029", reuse=True)


def test_what_is_no_data_set_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("mine")
    with pytest.raises(FormatError, match="no such prepared data set"):
        paml.prepare("synthetic", out=tmp_path / "data", reuse=True, **SMALL)
    assert [one.name for one in (tmp_path / "data").iterdir()] == ["thesis.txt"]


def test_what_killed_calls_have_left_is_removed(tmp_path: Path) -> None:
    """Not what calls that are under way have written, and not what was left just now."""
    paml.prepare("synthetic", out=tmp_path / "data", **SMALL)
    left, busy, new = (tmp_path / f".data.again-{name}" for name in ("1111", "2222", "3333"))
    for folder in (left, busy, new):
        (folder / "raw").mkdir(parents=True)
        (folder / "raw" / "part.parquet").write_bytes(b"1")
    for folder in (left, busy):
        os.utime(folder, (1e9, 1e9))
    before = {path.name for path in tmp_path.iterdir()}
    with hold(busy.with_name(f"{busy.name}.lock"), busy, "comparing with it"):
        paml.prepare("synthetic", out=tmp_path / "data", reuse=True, **SMALL)
        assert {path.name for path in tmp_path.glob("*")} == before - {left.name} | {f"{busy.name}.lock"}
    paml.prepare("synthetic", out=tmp_path / "data", reuse=True, **SMALL)
    assert {path.name for path in tmp_path.iterdir()} == {"data", new.name}
