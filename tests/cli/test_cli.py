"""The command line as people use it."""

import codecs
import io
import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer.main

import paml
from commands import run, run_process
from paml.cli import _without_lacking, app
from paml.cli.options import print_json
from paml.data.protocol import Protocol
from paml.data.sources import SOURCES
from paml.training.recipe import Recipe
from waiting import PATIENCE, wait_until

DOCS = Path(__file__).parent.parent.parent / "docs"


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


@pytest.mark.parametrize("settings", [Recipe, Protocol, *(source.settings for source in SOURCES.values())])
def test_every_setting_is_described_and_documented(settings: type[Protocol]) -> None:
    text = (DOCS / ("training.md" if settings is Recipe else "data.md")).read_text()
    for name, field in settings.model_fields.items():
        assert field.description
        assert f"`{name}`" in text, f"docs/data.md lacks {name}"


def test_version_and_help() -> None:
    assert run_process("--version").stdout == f"paml {paml.__version__}\n"
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
    assert (
        again.stderr.splitlines()[-1] == "error: D: already exists; choose another folder, or remove it first (--out)"
    )


def test_train_then_evaluate(tmp_path: Path, world: paml.Dataset) -> None:
    train = ["train", world.path, "--method", "reg_paml", "--out", "R", "--threads", "1", "epochs=2", "hidden=8,8"]
    done = run(*train, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "best epoch" in done.stdout
    result = json.loads(run("evaluate", "R", "--json", cwd=tmp_path).stdout)
    assert set(result["mse"]) == set(result["ndcg5"]) == set(result["rate"]) == {"all", "major", "minor"}
    assert 0 <= result["p_value"] <= 1
    assert "p-value, major against minor" in run("evaluate", "R", cwd=tmp_path).stdout
    rows = (tmp_path / "R" / "rows.parquet").read_bytes()
    refused = run("evaluate", "R", "--split", "known", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.endswith("the data set has no 'known' users; it has validation, test (--split)\n")
    assert (tmp_path / "R" / "rows.parquet").read_bytes() == rows
    assert run(*train, "--resume", cwd=tmp_path).returncode == 0
    assert "already exists" in run(*train, cwd=tmp_path).stderr
    assert "unknown method" in run("train", world.path, "--method", "x", cwd=tmp_path).stderr
    assert "expected validation, test or known" in run("evaluate", "R", "--split", "x", cwd=tmp_path).stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_output_lacks_are_written_out(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "\u6620\u753b \U0001f3ac.csv"  # a name of Japanese letters and a picture
    table.write_text("user,item,rating\n" + "".join(f"u{n % 9},i{n % 7},{1 + n % 5}\n" for n in range(60)))
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    monkeypatch.setenv("PYTHONUTF8", "0")
    assert run_process("train", "--help").returncode == 0
    done = run_process("data", "inspect", table, "--out", tmp_path / "\u6620.toml")
    assert (done.returncode, "\\u6620.toml" in done.stdout.replace("\n", "")) == (0, True), done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_json_is_json_in_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"title": "\u6620\u753b \U0001f3ac \u2013 \x1b \u202e"}
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, errors="backslashreplace"))
    print_json(value)
    sys.stdout.flush()
    assert json.loads(written.getvalue().decode(encoding)) == value


def test_signs_that_the_output_lacks_become_plain_ones() -> None:
    """As many, so that columns stay columns, and numbers stay numbers."""
    codecs.register_error("paml-test", _without_lacking)
    assert "\u22120.041 \u2193 \u2500\u2500 \u6620".encode("latin-1", "paml-test") == b"-0.041 v -- \\u6620"
    assert "\u22120.041 \u00b1 \u2013".encode("ascii", "paml-test") == b"-0.041 ~ -"
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("utf-8", "paml-test")


def test_settings_cannot_reach_other_arguments(tmp_path: Path) -> None:
    done = run("data", "prepare", "synthetic", "out=x", cwd=tmp_path)
    assert (done.returncode, done.stderr.startswith("error: unknown setting 'out'")) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "prepare", "tables", "--from", "LONG"],
        ["data", "prepare", "synthetic", "users=60", "--out", "LONG"],
        ["train", "LONG"],
        ["evaluate", "LONG"],
    ],
    ids=" ".join,
)
def test_a_name_too_long_for_a_file_is_an_error_in_one_line(tmp_path: Path, arguments: list[str]) -> None:
    long = 300 * "x"
    done = run(*(long if part == "LONG" else part for part in arguments), cwd=tmp_path)
    assert done.returncode == 1
    what, _, remedy = done.stderr.splitlines()[-1].removeprefix(f"error: {long}").rpartition("; ")
    assert what.count("File name too long") == 1
    assert remedy
    assert "Traceback" not in done.stderr
    assert "Errno" not in done.stderr


@pytest.mark.slow
def test_a_terminated_preparation_leaves_nothing(tmp_path: Path) -> None:
    program = "from paml.cli import main; main()"
    arguments = ["data", "prepare", "synthetic", "users=200000", "--out", "deep/down/D"]
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], cwd=tmp_path, stderr=subprocess.DEVNULL)
    wait_until(lambda: list(tmp_path.rglob("*.partial")) or process.poll() is not None)
    time.sleep(0.5)
    process.terminate()
    assert process.wait(PATIENCE) == 143
    assert not list(tmp_path.iterdir())


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


def test_progress_is_turned_off_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["data", "prepare", "synthetic", "users=60", "items=30", "--out"]
    assert "done in" in run(*command, "A", cwd=tmp_path).stderr
    monkeypatch.setenv("PAML_PROGRESS", "0")
    assert run(*command, "B", cwd=tmp_path).stderr == ""
    assert (tmp_path / "B").exists()


def test_a_schema_is_guessed_also_where_standard_output_is_closed(tables: Path, tmp_path: Path) -> None:
    schema = tmp_path / "x.toml"
    command = [sys.executable, "-m", "paml", "data", "inspect", str(tables / "ratings.csv")]
    for more in ([], ["--out", str(schema)]):
        done = subprocess.run(f"{shlex.join([*command, *more])} >&-", shell=True, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert schema.exists()


def test_list_shows_sources_and_settings() -> None:
    shown = json.loads(run("data", "list", "--json").stdout)
    assert set(shown["sources"]) == set(SOURCES)
    assert shown["protocol"]["user_ratio"]["default"] == "7:1:2"
    assert shown["sources"]["taobao"]["protocol"] == {"min_counts": "clicks"}
    listed = run("data", "list").stdout
    assert "cold_share" in listed
    assert "min_counts=clicks  of the protocol, with another default here" in listed


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_demo_runs_twice(tmp_path: Path) -> None:
    for _ in range(2):
        done = run_process("demo", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "item + user bias" in done.stdout
        assert "no predictor can have a lower MSE than 0.469" in done.stdout
        assert "report: paml-demo/comparison/report.html" in done.stdout


@pytest.mark.usefixtures("without_pdf")
def test_compare_then_report(tmp_path: Path, world: paml.Dataset) -> None:
    options = ["--methods", "melu", "--baselines", "bias,training_mean", "--seeds", "1", "--out", "C", "--threads", "1"]
    command = ["compare", world.path, *options, "epochs=1", "hidden=8"]
    done = run(*command, "--variant", "reg_paml gamma=0.1", "--group-by", "gender", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "item + user bias" in done.stdout
    assert done.stdout.splitlines()[-1] == "report: C/report.html"
    results = json.loads((tmp_path / "C" / "results.json").read_text())
    shown = json.loads(run("report", "C", "--json", cwd=tmp_path).stdout)
    files = {"cost": "costs.json", "environments": "environment.json"}
    beside = {key: json.loads((tmp_path / "C" / file).read_text()) for key, file in files.items()}
    assert shown == {**results, **beside}
    assert beside["environments"][0]["threads"] == 1
    assert "\\toprule" in run("report", "C", "--format", "latex", cwd=tmp_path).stdout
    assert "| ---" in run("report", "C", "--format", "markdown", cwd=tmp_path).stdout.replace("|---", "| ---")
    assert "was begun with other settings" in run("compare", world.path, "--out", "C", cwd=tmp_path).stderr
    assert run("compare", world.path, "--format", "word", cwd=tmp_path).returncode == 2
    assert "made by `paml compare` expected" in run("report", "nowhere", cwd=tmp_path).stderr
