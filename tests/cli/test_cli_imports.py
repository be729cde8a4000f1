"""What a command loads: those that need no model do not wait for PyTorch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import paml
from commands import run

HEAVY = {"torch", "scipy", "sklearn", "matplotlib"}
BEFORE_A_COMMAND = {*HEAVY, "polars", "numpy"}  # Typer itself uses pydantic


def imported(*arguments: object, cwd: Path) -> set[str]:
    """The modules that `paml` with these arguments imports, at any time until it ends."""
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "paml", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    found = set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", done.stderr, re.MULTILINE))
    assert "paml.cli" in found
    return found


def packages(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("paml.")}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["data", "--help"], ["data", "prepare", "--help"]])
def test_what_is_said_at_once_loads_nothing(tmp_path: Path, arguments: list[str]) -> None:
    found = imported(*arguments, cwd=tmp_path)
    assert not found & BEFORE_A_COMMAND
    assert packages(found) <= {"cli", "errors", "terminal"}


def test_data_commands_load_no_model(tmp_path: Path, tables: Path) -> None:
    for arguments in (
        ["list"],
        ["inspect", tables / "ratings.csv"],
        ["prepare", "tables", "--from", tables, "--out", "D", "cold_share=1"],
        ["describe", "D", "--verify"],
    ):
        found = imported("data", *arguments, cwd=tmp_path)
        assert not found & HEAVY, arguments
        allowed = {"cli", "data", "errors", "files", "locks", "progress", "registry", "settings", "terminal"}
        assert packages(found) <= allowed, arguments


def test_the_embedded_data_need_no_torch(tmp_path: Path) -> None:
    found = imported("data", "prepare", "synthetic", "users=60", "--out", "D", cwd=tmp_path)
    assert not found & {"torch", "sklearn", "matplotlib"}


def test_report_needs_no_torch(tmp_path: Path, world: paml.Dataset) -> None:
    baselines = ["bias", "training_mean"]
    paml.compare(world, [], 1, out=tmp_path / "C", baselines=baselines)
    assert "torch" not in imported("report", "C", cwd=tmp_path)


@pytest.mark.parametrize("command", ["train", "tune", "compare"])
def test_help_names_methods_and_recipes(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = run(command, "--help").stdout
    assert "One of: paper, tuned; or a recipe file of your own" in shown
    assert "{" not in shown.replace("{DIR}", "")
    assert command == "compare" or "One of: melu, meta_sgd, transfer, paml, at_paml, reg_paml, ridge." in shown
