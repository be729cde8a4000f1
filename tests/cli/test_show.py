"""Tables on the terminal: nothing of an id or a number is lost."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from commands import run
from paml.cli.show import _new_table, standard_output
from smalltables import write_tables

LONG = "101fbccc-ded7-33e8-b4a1-0123456789ab"


def test_ids_are_whole_in_a_file_or_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    folder = write_tables(tmp_path / "tables", users=60)
    for name, before in (("movies.csv", ""), ("ratings.csv", r"\d+,")):
        text = (folder / name).read_text()
        (folder / name).write_text(re.sub(rf"^({before})3,", rf"\g<1>{LONG},", text, flags=re.MULTILINE))
    assert run("data", "prepare", "tables", "--from", folder, "--out", "D", cwd=tmp_path).returncode == 0
    assert run("train", "D", "--out", "R", "epochs=1", "ensemble_size=1", cwd=tmp_path).returncode == 0
    lines = run("recommend", "R", "-n", "12", cwd=tmp_path).stdout.splitlines()
    assert [line for line in lines if LONG in line and "Film" in line]


@pytest.mark.parametrize("width", [16, 30, 200])
def test_what_is_too_wide_for_a_terminal_is_folded(width: int) -> None:
    out = io.StringIO()
    table = _new_table(["item"], ["rating", "chance"])
    table.add_row(LONG, "3.1415", "100.0%")
    Console(file=out, width=width).print(table)
    cells = [line.split("│")[1:-1] for line in out.getvalue().splitlines() if "│" in line]
    shown = ["".join(part.strip() for part in column) for column in zip(*cells, strict=True)]
    assert shown == [LONG, "3.1415", "100.0%"]


def test_a_terminal_keeps_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert standard_output().width == 30
