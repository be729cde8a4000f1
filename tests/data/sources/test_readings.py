"""The program that compares readings of Book-Crossing counts as preparation does."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.reading import Books, Reading
from benchmarks.readings import NAMED, grid, main, measure

import paml
from paml.evaluation.metrics import ndcg_by_chance
from smallbooks import write_readers

LOG, NEAREST = Reading(), Reading(log="explicit", minimum=5, place="last", ranked="down")


def kept(books: Books, reading: Reading) -> set[str]:
    return set(books.users["user"].to_numpy()[books.select(reading)])


@pytest.mark.parametrize(("name", "reading"), [("log", LOG), ("paper", NEAREST)])
def test_a_reading_keeps_the_users_that_preparation_keeps(name: str, reading: Reading, tmp_path: Path) -> None:
    folder = write_readers(tmp_path / "raw")
    data = paml.prepare("bookcrossing", folder, tmp_path / "data", reading=name)
    users = data.users().collect()
    books = Books(folder)
    found = measure(books, reading, books.select(reading))
    assert kept(books, reading) == set(users["user"])
    assert found["items"] == data.manifest.items
    assert found["mean"] == users["query_rows"].mean()
    assert found["major"] == sum(data.manifest.major.values()) / len(users)
    assert reading in [named for label, named in NAMED if label.startswith(f"`{name}`")]


def test_the_open_points_change_who_is_kept(tmp_path: Path) -> None:
    books = Books(write_readers(tmp_path / "raw"))
    assert kept(books, Reading(log="explicit")) == {"2", "3", "4", "5", "6", "8"}  # of ten users, not 9 and 10
    assert kept(books, Reading(log="explicit", valid="anything")) == {"2", "3", "4", "5", "6", "7", "8"}
    assert kept(books, Reading(log="explicit", minimum=3, place="last", pick="most")) == {"5", "6", "8", "9", "10"}
    assert kept(books, Reading(pick="top")) == {"6", "10"}
    assert kept(books, Reading(rows="described")) == set()


def test_chance_is_that_of_the_rows_that_are_ranked(tmp_path: Path) -> None:
    books = Books(write_readers(tmp_path / "raw"))
    rows, six = books.rows["all"], books.users["user"].to_list().index("6")
    targets = np.concatenate([np.arange(1.0, 7.0), np.zeros(20)])
    expected = ndcg_by_chance(np.log2(1 + targets), np.array([26]), 5)[0]
    assert rows.chance("every", "linear", 5)[six] == pytest.approx(expected)
    assert rows.ranked_counts("nearest")[six] == 5
    assert rows.ranked_counts("down")[six] == 6


def test_every_reading_is_tried_once() -> None:
    readings = list(grid())
    assert len(readings) == len(set(readings)) == 7560


def test_the_program_prints_a_line_per_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_readers(tmp_path / "raw")
    some = (("`log`", LOG), ("`paper`", NEAREST))
    monkeypatch.setattr("benchmarks.readings.NAMED", some)
    monkeypatch.setattr("sys.argv", ["readings", str(folder), "--top", "0"])
    main()
    printed = capsys.readouterr().out.splitlines()
    assert printed[4].startswith(
        "| `paper`: explicit ratings; 5 or more; valid age, state and country in letters; 80 %"
    )
    assert "| 4 | 55 |" in printed[4]
