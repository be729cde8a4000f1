"""The registry: entries of paml and of others, found by name, and what happens to those that cannot be used."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import paml
from paml.baselines import Baseline
from paml.data.sources import SOURCES, Source
from paml.errors import SettingsError
from paml.evaluation.metrics import EVERY, METRICS, RATING, ExposureMetric, ListMetric, Metric, headline, metrics_for
from paml.methods.registry import METHODS, Method, find_method, methods_of
from paml.methods.spaces import COMMON
from paml.registry import Origin, PluginWarning, Registry, callable_entry
from paml.settings import Settings
from paml.testing import registered
from plugins import install

OURS = {"plain": len}
SHELF = """
def sort(values):
    return sorted(values)

number = 3
"""


def registry() -> Registry[object]:
    """Of a kind that nobody else has entries of."""
    return Registry("shelf", dict(OURS), callable_entry)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, none yet."""
    folder = tmp_path / "installed"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_an_entry_point_is_found_by_its_name_and_among_all(packages: Path) -> None:
    install(packages, "good-shelves", SHELF, {"paml.shelfs": "sorted = good_shelves:sort"})
    known = registry()
    assert known.find("sorted")([2, 1]) == [1, 2]
    assert known.origin("sorted") == Origin("good-shelves", "1.2")
    assert list(registry().all()) == ["plain", "sorted"]
    assert known.origins() == [Origin("good-shelves", "1.2")]
    assert (known.origin("plain"), known.get("plain"), known.get("none")) == (None, len, None)


def test_nothing_is_loaded_before_it_is_asked_for(packages: Path) -> None:
    install(packages, "late-shelves", "raise SystemExit(3)\n", {"paml.shelfs": "late = late_shelves:sort"})
    known = registry()
    assert known.find("plain") is len
    assert "late_shelves" not in sys.modules
    with pytest.warns(PluginWarning, match=r"'late' of the package 'late-shelves 1.2' is skipped.*SystemExit: 3"):
        assert list(known.all()) == ["plain"]


def test_an_unknown_name_lists_the_known_ones(packages: Path) -> None:
    install(packages, "more-shelves", SHELF, {"paml.shelfs": "sorted = more_shelves:sort"})
    with pytest.raises(SettingsError, match="unknown shelf 'xxx'; known: plain, sorted"):
        registry().find("xxx")
    with pytest.raises(SettingsError, match="unknown shelf 'sortet'; did you mean 'sorted'"):
        registry().find("sortet")


def test_what_cannot_be_used_is_named_with_its_package_and_the_others_go_on(packages: Path) -> None:
    points = "\n".join(f"{name} = {module}" for name, module in {
        "absent": "bad_shelves:absent", "number": "bad_shelves:number", "Upper": "bad_shelves:sort",
        "plain": "bad_shelves:sort", "fine": "bad_shelves:sort",
    }.items())  # fmt: skip
    install(packages, "bad-shelves", SHELF, {"paml.shelfs": points})
    install(packages, "broken-shelves", "import no_such_module\n", {"paml.shelfs": "broken = broken_shelves:sort"})
    install(packages, "more-shelves", SHELF, {"paml.shelfs": "fine = more_shelves:sort"})
    known = registry()
    with pytest.warns(PluginWarning) as caught:
        assert list(known.all()) == ["plain", "fine"]
    said = sorted(str(one.message) for one in caught)
    bad, whose = "of the package 'bad-shelves 1.2' is skipped: it", "the package 'bad-shelves 1.2' has a shelf"
    assert said == [
        f"the shelf 'Upper' {bad} has a name with other characters than a-z, 0-9, _ and -",
        f"the shelf 'absent' {bad} cannot be imported (AttributeError: module 'bad_shelves' has no attribute 'absent')",
        "the shelf 'broken' of the package 'broken-shelves 1.2' is skipped: it cannot be imported "
        "(ModuleNotFoundError: No module named 'no_such_module')",
        f"the shelf 'fine' of the package 'more-shelves 1.2' is skipped: {whose} of that name",
        f"the shelf 'number' {bad} is a int, and cannot be called",
        "the shelf 'plain' of the package 'bad-shelves 1.2' is skipped: paml has a shelf of that name",
    ]
    assert known.find("plain") is len
    assert known.origin("fine") == Origin("bad-shelves", "1.2")
    with pytest.raises(SettingsError, match=r"'broken' of the package 'broken-shelves 1.2' is skipped.*uninstall it"):
        known.find("broken")
    assert list(known.all()) == ["plain", "fine"]  # and nothing is said twice


def test_register_refuses_names_that_exist(packages: Path) -> None:
    install(packages, "more-shelves", SHELF, {"paml.shelfs": "sorted = more_shelves:sort"})
    known, here = registry(), Origin("study")
    known.register("own", max, here)
    assert known.find("own") is max
    for name, whose in (("plain", "paml"), ("own", "the module 'study'"), ("sorted", "the package 'more-shelves 1.2'")):
        with pytest.raises(SettingsError, match=f"is refused: {whose} has a shelf of that name"):
            known.register(name, min, here)
    known.forget("own")
    assert list(known.all()) == ["plain", "sorted"]


def test_paml_register_says_who_did_it() -> None:
    method = Method("Mine", "as PAML", "personal", METHODS["paml"].objective)
    with registered("method", "mine", method):
        assert find_method("mine") is method
        assert methods_of("tuned")[-1] == "mine"
        assert "mine" not in methods_of("paper")
        assert method.space == COMMON
        with pytest.raises(SettingsError, match=f"'mine' of the module '{__name__}' is refused"):
            paml.register("method", "mine", method)
    with pytest.raises(SettingsError, match="unknown method 'mine'"):
        find_method("mine")
    with pytest.raises(SettingsError, match="there is no registry of 'methods'; did you mean 'method'"):
        paml.register("methods", "mine", method)


class Odd(Settings):
    """A setting that the protocol has, too."""

    seed: int = 0


class Demanding(Settings):
    """A setting without a default."""

    size: int


def constant(*_: object) -> np.ndarray:
    return np.zeros(2)


QUERY_LOSS = METHODS["paml"].objective
MSE = METRICS["mse"].compute


@pytest.mark.parametrize(
    ("kind", "entry", "reason"),
    [
        ("method", METHODS, "is a dict, not a Method"),
        ("method", Method("x", "x", "personal", None), "has a function `objective` that cannot be called"),
        ("method", Method("x", "x", "impersonal", QUERY_LOSS), "unknown rate 'impersonal'; did you mean 'personal'"),
        ("method", Method("x", "x", "personal", QUERY_LOSS, "magic"), "unknown solver 'magic'; known: closed_form, gr"),
        ("method", Method("x", "x", "personal", QUERY_LOSS, space={"gamma": (0, 1)}), "neither a Range nor an Among"),
        ("baseline", Baseline("y", "y", RATING, constant), "calls itself 'y'"),
        ("baseline", Baseline("x", "x", frozenset({"stars"}), constant), "predicts stars; known: choice, cl"),
        ("source", Source("x", "", Odd, constant, frozenset()), "has the setting 'seed', which the protocol has, too"),
        ("source", Source("x", "", Demanding, constant, frozenset()), "cannot be checked .ValidationError"),
        ("source", Source("x", "", Settings, constant, frozenset({"url"})), "takes 'url'; known: path, extra, schema"),
        ("metric", Metric("x", "x", "lower", 3, RATING, constant), r"computes \(2,\) for three users, not one numb"),
        ("metric", Metric("x", "x", "lower", 3, RATING, lambda *_: 0.5), "computes float for three users"),
        ("metric", Metric("x", "x", "best", 3, RATING, MSE), "needs 'lower' or 'higher'"),
        ("metric", Metric("x", "x", "lower", 3, frozenset(), MSE), "measures nothing"),
        ("metric", Metric("x", "x", "lower", 3, RATING, lambda *_: 1 / 0), "cannot be checked .ZeroDivisionError"),
        ("metric", ListMetric("x", "x", "lower", 3, EVERY, constant), r"computes \(2,\) for three users"),
        ("metric", ExposureMetric("x", "x", "lower", 3, EVERY, constant), r"computes \(2,\) .* not one number"),
        ("rate", 3, "is a int, and cannot be called"),
        ("solver", "gradient", "is a str, and cannot be called"),
    ],
)  # fmt: skip
def test_an_entry_that_breaks_its_contract_is_refused(kind: str, entry: object, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        paml.register(kind, "x", entry)


def test_a_metric_may_not_have_the_name_of_a_column() -> None:
    for name in ("rate", "mse_chance"):
        with pytest.raises(SettingsError, match="has the name of another column"):
            paml.register("metric", name, Metric(name, name, "lower", 3, RATING, MSE))


def test_what_is_built_in_keeps_its_contract_and_others_come_last() -> None:
    from paml.baselines.registry import BASELINES, _problem as of_baseline
    from paml.data.sources import _problem as of_source
    from paml.evaluation.metrics import probe
    from paml.methods.registry import _problem as of_method

    tables = ((METHODS, of_method), (BASELINES, of_baseline), (SOURCES, of_source), (METRICS, probe))
    assert not [reason for table, check in tables for name, entry in table.items() if (reason := check(name, entry))]
    with registered("metric", "bias", Metric("bias", "bias", "lower", 3, RATING, MSE)):
        assert metrics_for("rating")[-1].name == "bias"
        assert headline("rating").name == "mse"


def test_the_command_line_warns_in_a_line(tmp_path: Path) -> None:
    install(tmp_path / "i", "broken-source", "import no_such_module\n", {"paml.sources": "lost = broken_source:lost"})
    path = {"PYTHONPATH": f"{tmp_path / 'i'}:{Path(paml.__file__).parent.parent}", "COLUMNS": "200"}
    command = [sys.executable, "-m", "paml", "data"]
    done = subprocess.run([*command, "list"], capture_output=True, text=True, env=path, check=False)
    assert done.returncode == 0
    skipped = "the source 'lost' of the package 'broken-source 1.2' is skipped: it cannot be imported "
    skipped += "(ModuleNotFoundError: No module named 'no_such_module')"
    assert done.stderr == f"warning: {skipped}\n"
    assert "synthetic" in done.stdout
    done = subprocess.run([*command, "prepare", "lost"], capture_output=True, text=True, env=path, check=False)
    assert done.returncode == 1
    assert done.stderr == f"error: {skipped}; repair or uninstall it\n"
