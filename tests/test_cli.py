"""The command line as people use it: real processes."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

import paml
from paml.cli import app
from paml.data.protocol import Protocol
from paml.data.sources import SOURCES

DOCS = Path(__file__).parent.parent / "docs"


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from paml.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)


def commands(command: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found = [(path, command)]
    for name, child in getattr(command, "commands", {}).items():
        found += commands(child, (*path, name))
    return found


COMMANDS = commands(typer.main.get_command(app))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(("paml", *path)) for path, _ in COMMANDS])
def test_every_command_and_option_has_help_and_is_documented(path: tuple[str, ...], command: Any) -> None:
    assert command.help, "no help text"
    text = (DOCS / "cli.md").read_text()
    assert " ".join(("paml", *path)) in text
    for parameter in command.params:
        if parameter.name in {"install_completion", "show_completion", "help"}:
            continue
        assert getattr(parameter, "help", None), f"{parameter.name} has no help text"
        for option in parameter.opts if parameter.param_type_name == "option" else []:
            assert f"`{option}" in text, f"docs/cli.md lacks {option}"


@pytest.mark.parametrize("settings", [Protocol, *(source.settings for source in SOURCES.values())])
def test_every_setting_is_described_and_documented(settings: type[Protocol]) -> None:
    text = (DOCS / "data.md").read_text()
    for name, field in settings.model_fields.items():
        assert field.description
        assert f"`{name}`" in text, f"docs/data.md lacks {name}"


def test_version_and_help() -> None:
    assert run("--version").stdout == f"paml {paml.__version__}\n"
    assert "prepare" in run("data", "--help").stdout
    assert run("data", "nonsense").returncode == 2


def test_prepare_then_describe(tmp_path: Path) -> None:
    done = run("data", "prepare", "synthetic", "users=300", "items=50", "--out", "D", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "80% with the least log data" in done.stdout
    described = run("data", "describe", "D", "--json", "--verify", cwd=tmp_path)
    assert described.returncode == 0
    facts = json.loads(described.stdout)
    assert sum(facts["splits"].values()) == facts["users"]
    for name, share in (("train", 0.7), ("validation", 0.1), ("test", 0.2)):
        assert abs(facts["splits"][name] - share * facts["users"]) <= 1
    assert facts["groups"]["major"] + facts["groups"]["minor"] == pytest.approx(1)
    assert sum(facts["dropped"].values()) == 300 - facts["users"]
    assert sum(facts["histogram"].values()) == facts["interactions"]
    assert re.fullmatch(r"[0-9a-f]{64}", facts["fingerprint"])
    assert "major / minor users" in run("data", "describe", "D", cwd=tmp_path).stdout
    again = run("data", "prepare", "synthetic", "users=300", "--out", "D", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.splitlines()[-1] == "error: D: already exists; choose another --out, or remove it first"


def test_errors_are_one_line_without_traceback(tmp_path: Path) -> None:
    for arguments in (
        ["data", "prepare", "syntetic"],
        ["data", "describe", "nowhere"],
        ["data", "prepare", "synthetic", "x"],
    ):
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("error: ")
    assert not list(tmp_path.iterdir())


def test_list_shows_sources_and_settings() -> None:
    shown = json.loads(run("data", "list", "--json").stdout)
    assert set(shown["sources"]) == set(SOURCES)
    assert shown["protocol"]["user_ratio"]["default"] == "7:1:2"
    assert "cold_share" in run("data", "list").stdout


def test_demo_runs_twice(tmp_path: Path) -> None:
    for _ in range(2):
        done = run("demo", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "item + user bias, folded in" in done.stdout
        assert "best reachable" in done.stdout
