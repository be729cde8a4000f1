"""The example package as somebody would use it: installed with pip, beside one that is broken."""

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import paml
from paml.registry import Origin
from plugins import install
from waiting import wait_until

PROJECT = Path(__file__).parent.parent
SOURCE = Path(paml.__file__).parent.parent
BROKEN = "import no_such_module\n"
SKIPPED = (
    "warning: the {kind} 'lost' of the package 'paml-broken 1.2' is skipped: it cannot be imported "
    "(ModuleNotFoundError: No module named 'no_such_module')"
)
SMALL = ("epochs=1", "ensemble_size=1", "choice_part=0")


def environment(*folders: Path) -> dict[str, str]:
    """The packages in some folders are installed."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*folders, SOURCE))), "OMP_NUM_THREADS": "1"}


def command(*arguments: object, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "paml", *map(str, arguments)]
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, put into a folder by pip, without an index."""
    folder = tmp_path_factory.mktemp("example")
    copy = shutil.copytree(PROJECT / "examples" / "paml_example", folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    done = subprocess.run([*pip, "--target", folder / "site", copy], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    points = {"paml.methods": "lost = paml_broken:LOST", "paml.metrics": "lost = paml_broken:LOST"}
    return install(tmp_path_factory.mktemp("broken") / "site", "paml-broken", BROKEN, points)


@pytest.mark.slow
def test_the_example_is_compared_and_served_and_a_broken_package_is_named(
    installed: Path, broken: Path, tmp_path: Path
) -> None:
    env = environment(installed, broken)
    world = paml.prepare("synthetic", out=tmp_path / "D", users=120, items=40)
    chosen = ("--methods", "melu,bounded_paml", "--baselines", "bias,damped_mean", "--seeds", "1")
    done = command("compare", world.path, *chosen, *SMALL, "--out", "C", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    for shown in ("bounded PAML", "damped means", "within 1", "MeLU"):
        assert shown in done.stdout
    said = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert said == [SKIPPED.format(kind="metric")]
    results = json.loads((tmp_path / "C" / "results.json").read_text())
    assert 0 < results["table"]["within1"]["bounded_paml"]["all"]["mean"] < 1
    assert any(line.startswith("By within 1, ") for line in results["verdict"])
    assert "at most 1 away from the rating" in (tmp_path / "C" / "report.html").read_text()
    assert '"paml-example":"0.1.0"' in (tmp_path / "C" / "environment.json").read_text().replace(" ", "")
    run = tmp_path / "C" / "runs" / "bounded_paml@0"
    assert json.loads((run / "settings.json").read_text())["packages"] == {"paml-example": "0.1.0"}
    serve(run, tmp_path, env)
    refused = command("evaluate", run, cwd=tmp_path, env=environment())
    assert refused.returncode == 1
    needs = "needs the method 'bounded_paml' of the package 'paml-example 0.1.0'; pip install paml-example==0.1.0"
    assert refused.stderr == f"error: {run}: {needs}\n"


def serve(run: Path, folder: Path, env: dict[str, str]) -> None:
    """`paml serve` answers for a new user."""
    log = folder / "server.log"
    with log.open("wb") as out:
        start = [sys.executable, "-m", "paml", "serve", str(run), "--port", "0"]
        server = subprocess.Popen(start, cwd=folder, env=env, stdout=out, stderr=out)
    try:
        told = r"serving at (http://\S+:\d+)"
        wait_until(lambda: re.search(told, log.read_text()) or server.poll() is not None)
        found = re.search(told, log.read_text())
        assert found, log.read_text()
        with urllib.request.urlopen(f"{found[1]}/v1/model") as answer:
            assert json.load(answer)["method"] == "bounded_paml"
    finally:
        server.terminate()
        server.wait()


@pytest.mark.slow
def test_the_example_in_other_commands(installed: Path, broken: Path, tmp_path: Path) -> None:
    env = environment(installed, broken)
    prepared = command("data", "prepare", "clans", "members=150", "--out", "D", cwd=tmp_path, env=env)
    assert prepared.returncode == 0, prepared.stderr
    assert paml.open_data(tmp_path / "D").manifest.source.name == "clans"  # the package is not needed to use it
    helped = command("train", "--help", cwd=tmp_path, env={**env, "COLUMNS": "200"})
    assert "ridge, bounded_paml." in helped.stdout
    assert helped.stderr == SKIPPED.format(kind="method") + "\n"
    found = command(
        "tune", "D", "--method", "bounded_paml", "--budget", "2", "--out", "T", *SMALL, cwd=tmp_path, env=env
    )
    assert found.returncode == 0, found.stderr
    trials = [json.loads(line) for line in (tmp_path / "T" / "trials.jsonl").read_text().splitlines()]
    assert {"rate_scale", "inner_steps"} < set(trials[-1]["settings"])


def test_a_run_of_a_registered_method_names_the_module(world: paml.Dataset, tmp_path: Path) -> None:
    from paml.methods.registry import METHOD_REGISTRY, METHODS

    METHOD_REGISTRY.register("study", METHODS["paml"], Origin("my_study"))
    try:
        settings = {"epochs": 0, "ensemble_size": 1, "choice_part": False}
        run = paml.train(world, "study", out=tmp_path / "run", settings=settings)
        assert run.settings.packages == {"my_study": ""}
        assert paml.load(run.path).settings == run.settings
    finally:
        METHOD_REGISTRY.forget("study")
    with pytest.raises(paml.FormatError, match="'study' of the module 'my_study'; import it first: it calls"):
        paml.load(run.path)


@pytest.mark.usefixtures("without_pdf")
def test_a_baseline_that_fails_is_excluded_by_name_and_the_others_go_on(world: paml.Dataset, tmp_path: Path) -> None:
    from paml.baselines import Baseline, Fitted
    from paml.testing import registered

    def fails(data: paml.Dataset, seed: int) -> Fitted:
        raise ValueError("nothing works")

    with registered("baseline", "fails", Baseline("fails", "failing", frozenset({"rating"}), fails)):
        results = paml.compare(world, [], 1, out=tmp_path / "C", baselines=["bias", "fails"])
    assert [(cell.method, cell.reason) for cell in results.failed] == [
        ("fails", "the module 'test' failed (ValueError: nothing works)")
    ]
    assert results.mean("bias") is not None
