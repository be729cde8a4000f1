"""What notebooks show: tables and a figure, well formed, escaped, without scripts, in the notebook's own colours."""

import builtins
import json
import re
import sys
from contextlib import suppress
from html import unescape
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest

import paml
from conftest import RunOf
from paml.analysis.results import read_results
from paml.notebook import BLUE, bars, curve, intervals, table
from paml.progress import SILENT, chosen

NASTY = '<img src=x onerror="alert(1)">&'


def parsed(html: str) -> ElementTree.Element:
    """The markup as a tree; it is well formed, and nothing in it is run or loaded."""
    named = re.sub(r"&(?!amp;|lt;|gt;|quot;|#x27;)\w+;", lambda found: unescape(found[0]), html)
    tree = ElementTree.fromstring(named)
    allowed = {
        "div",
        "strong",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "svg",
        "rect",
        "line",
        "polyline",
        "circle",
        "text",
        "title",
        "span",
        "details",
        "summary",
    }
    assert {node.tag for node in tree.iter()} <= allowed
    for node in tree.iter():
        assert not [name for name in node.attrib if name.startswith("on") or name in ("href", "src")]
        assert "#fff" not in node.get("style", "")
        assert "background:#" not in node.get("style", "")
    for words in tree.iter("text"):
        assert words.get("fill") == "currentColor"
    return tree


def words(tree: ElementTree.Element) -> str:
    return " ".join("".join(node.itertext()) for node in tree.iter() if node.tag in ("td", "th", "strong", "text"))


def numbers(tree: ElementTree.Element, tag: str, name: str) -> list[float]:
    return [float(node.attrib[name]) for node in tree.iter(tag)]


def test_a_data_set(world: paml.Dataset) -> None:
    tree = parsed(world._repr_html_())
    shown = words(tree)
    for part in ("synthetic", f"{world.manifest.users:,}", "gender, age", world.fingerprint[:12], "ratings per user"):
        assert part in shown
    counts = [int(unescape(node.text or "").rpartition(" ")[2].replace(",", "")) for node in tree.iter("title")]
    assert sum(counts) == world.manifest.users


@pytest.mark.parametrize("target", ["rating", "click"])
def test_a_run_has_its_validation_curve(target: str, run_of: RunOf) -> None:
    run = run_of(target, "reg_paml")
    tree = parsed(run._repr_html_())
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert len(list(tree.iter("circle"))) == len(lines)
    assert {"rating": "MSE", "click": "NEL"}[target] + " of validation users" in words(tree)
    assert "reg_paml" in words(tree)


@pytest.mark.slow
@pytest.mark.usefixtures("without_pdf")
def test_results(world: paml.Dataset, tmp_path: Path) -> None:
    found = paml.compare(world, [], 1, out=tmp_path / "out", baselines=["bias", "training_mean", "popular"])
    tree = parsed(found._repr_html_())
    shown = words(tree)
    assert "item + user bias" in shown
    assert f"{found.mean('bias'):.3f}" in shown
    places = numbers(tree, "circle", "cx")  # one for each that predicts, the better one to the left
    assert len(places) == 2
    assert places[0] < places[1]
    assert "lower is better" in shown
    assert parsed(read_results(tmp_path / "out")._repr_html_()) is not None


def test_a_user_stands_among_all(run_of: RunOf) -> None:
    run = run_of("rating", "reg_paml")
    user = run.adapt(profile={"gender": "F", "occupation": NASTY}, ratings={"3": 5, "7": 2})
    tree = parsed(user._repr_html_())
    shown = words(tree)
    assert NASTY in shown
    assert "this user" in shown
    assert run.predictor.catalogue.title("3") in shown
    profile = user.rate_profile()
    mark = next(float(node.attrib["x1"]) for node in tree.iter("line") if node.get("stroke-width") == "2")
    expected = 10 + 440 * (profile.rate - profile.edges[0]) / (profile.edges[-1] - profile.edges[0])
    assert mark == pytest.approx(expected, abs=0.06)
    assert "User with 0 ratings" in words(parsed(run.adapt()._repr_html_()))


def test_recommendations_are_a_list_with_a_table(run_of: RunOf) -> None:
    user = run_of("rating", "reg_paml").adapt(ratings={"3": 5, "7": 2})
    found = user.recommend(4)
    assert isinstance(found, list)
    assert found == list(found) == user.recommend(4)
    assert (found[0], found[-1], len(found)) == (found[:1][0], [*found][3], 4)
    assert found.reasons is None
    rows = list(parsed(found._repr_html_()).iter("tr"))
    assert len(rows) == 5
    assert [cell.text for cell in rows[1]][:3] == ["1", found[0].item, found[0].title]
    why = user.recommend(4, why=1)
    assert why == found
    assert why.reasons == user.reasons([one.item for one in found], 1)
    assert why.reasons[0][0].title in words(parsed(why._repr_html_()))
    assert "because" not in words(parsed(found._repr_html_()))
    assert len(list(parsed(user.recommend(3, among=["3"])._repr_html_()).iter("tr"))) == 1


def test_names_from_data_are_escaped(tmp_path: Path) -> None:
    rows = [(user, NASTY if item == 3 else item, 1 + user * item % 5) for user in range(30) for item in range(1, 9)]
    log = pl.DataFrame([(u, str(i), r) for u, i, r in rows], ["user", "item", "rating"], orient="row")
    data = paml.prepare(interactions=log, out=tmp_path / NASTY.replace("/", ""), cold_share=1)
    assert "<img" not in data._repr_html_()
    parsed(data._repr_html_())


@pytest.mark.parametrize(
    "html",
    [
        bars([("users", [0, 0], BLUE)], ("1", "1"), "none"),
        bars([("users", [3], BLUE)], ("1", "1"), "one bin", (7.0, "beyond")),
        curve([None, 1.0], None, ("a", "b"), "one value"),
        curve([1.0, 1.0], 0, ("a", "b"), "all the same"),
        intervals([("a", 1.0, 0.0, BLUE)], "one"),
        table([]),
    ],
)
def test_figures_of_next_to_nothing(html: str) -> None:
    tree = parsed(html if html.startswith("<table") else f"<div>{html}</div>")
    values: list[Any] = [value for node in tree.iter() for value in node.attrib.values()]
    assert not [value for value in values if "nan" in value or "inf" in value.replace("infl", "")]


class Place:
    """Where a notebook shows something, as `IPython.display.display(..., display_id=True)` returns it."""

    def __init__(self, first: dict[str, str]) -> None:
        self.shown = [first]

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(data)


def test_progress_needs_nothing_but_ipython(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich's own bars need widgets in notebooks, and warn without them; these do not."""
    places: list[Place] = []

    def display(data: dict[str, str], *, raw: bool, display_id: bool = False) -> Place:
        assert raw
        places.append(Place(data))
        return places[-1]

    kernel = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: kernel, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.delenv("PAML_PROGRESS", raising=False)
    monkeypatch.setattr("paml.progress._NotebookStep.EVERY_SECONDS", 0.0)
    progress = chosen(None)
    with suppress(KeyboardInterrupt), progress.step(f"training {NASTY}", 4) as step:
        step.advance(3, NASTY)
        raise KeyboardInterrupt
    progress.say(NASTY)
    assert chosen(False) is SILENT
    first, then, last = places[0].shown
    assert (last["text/html"], last["text/plain"]) == ("", "")  # nothing stays
    for drawn, done in ((first, "0"), (then, "3")):
        bar = ElementTree.fromstring(drawn["text/html"]).find("progress")
        assert bar is not None
        assert bar.attrib == {"value": done, "max": "4"}
    assert "".join(ElementTree.fromstring(then["text/html"]).itertext()).count(NASTY) == 2
    assert "".join(ElementTree.fromstring(places[1].shown[0]["text/html"]).itertext()) == NASTY
