"""The report's page: sound HTML that needs nothing else, and a page that people can read, in a real browser."""

import re
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paml.analysis.results import MissingCell, read_results
from paml.data.schema import Target
from paml.errors import FormatError
from paml.evaluation.metrics import reweighted
from paml.evaluation.ranking import relevant_level
from paml.report import write_report
from paml.report.figures import figures
from paml.report.glossary import glossary
from paml.report.page import page
from paml.report.tables import all_tables
from report.comparison import write_comparison
from report.complete import summarise_again
from report.test_figures import contrast
from waiting import PATIENCE

VOID = {"meta", "br", "hr", "img", "input", "link"}
NASTY = "<script>alert(1)</script> & \"co\" 'x' $title {y}"


class Outline(HTMLParser):
    """Checks that elements are closed in order, and keeps what the page consists of."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_page_is_sound_and_needs_nothing_else(kind: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    text = (folder / "report.html").read_text()
    elements = outline(text).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {str(a["href"]) for tag, a in elements if tag == "a"}
    assert {target.removeprefix("#") for target in targets} <= set(ids)
    assert not {"script", "link", "img", "iframe", "object", "image"} & {tag for tag, _ in elements}
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert dict(elements)["html"]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in elements if re.fullmatch(r"h\d", tag)]
    assert levels[:2] == [1, 2]
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all("scope" in attributes for tag, attributes in elements if tag == "th")
    assert all(a.get("role") == "img" and a.get("aria-label") for tag, a in elements if tag == "svg")
    drawn = list((folder / "figures").glob("*.svg"))
    assert sum(tag == "figure" for tag, _ in elements) == len(drawn)
    referred = re.findall(r'(?:href="|url\()#([^")]+)', text)
    assert set(referred) <= set(ids)


def test_verdict_comes_first_then_tables_then_figures(ratings: Path) -> None:
    text = (ratings / "report.html").read_text()
    results = read_results(ratings)
    places = [text.index(f'<section id="{name}"') for name in ("verdict", "tables", "figures", "made")]
    assert places == sorted(places)
    assert "Not finished" not in text
    assert results.plan.data.fingerprint in text
    assert "<dt>version</dt><dd>paml 0</dd>" in text  # that of the comparison, not that of the report
    assert "paml compare data" in text
    assert f"paml report {ratings}" in text
    assert (ratings / "tables" / "comparison.tex").exists()


@pytest.mark.parametrize(
    ("low", "high", "step"), [(1, 5, 1), (0, 5, 0.1), (0, 1, 1 / 7), (-10, 10, 0.01), (1_000_000, 1_000_100, 1)]
)
def test_the_command_repeats_the_level_of_liked_items(ratings: Path, low: float, high: float, step: float) -> None:
    results, target = read_results(ratings), Target(kind="rating", low=low, high=high, step=step)
    level = relevant_level(target)
    changed = results.model_copy(update={"plan": results.plan.model_copy(update={"liked": level})})
    printed = re.findall(r"--liked (\S+)", page(changed, [], {}))
    assert [relevant_level(target, float(text)) for text in printed] == [level]


def test_words_are_explained(ratings: Path, clicks: Path) -> None:
    words = glossary(read_results(ratings))
    text = (ratings / "report.html").read_text()
    section = text[text.index('<section id="glossary"') : text.index('<section id="made"')]
    assert "<details>" in section
    assert all(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" in section for word, meaning in words.items())
    assert {
        "support and query rows",
        "Holm",
        "by chance",
        "nDCG@3, nDCG@5",
        "nDCG@10, catalogue",
        "learning rate",
    } <= set(words)
    assert not {"NEL", "AUC", "prior variance"} & set(words)
    assert {"NEL", "AUC"} <= set(glossary(read_results(clicks)))


def test_nel_is_explained_as_it_is_computed(clicks: Path) -> None:
    assert "p′ = 0.9 p / (0.9 p + 0.1 (1 − p))" in glossary(read_results(clicks))["NEL"]
    p_N = np.array([0.1, 0.4, 0.8])
    assert np.allclose(reweighted(p_N), 0.9 * p_N / (0.9 * p_N + 0.1 * (1 - p_N)))


def test_the_papers_clicks_have_a_note_and_no_table(clicks: Path, ratings: Path) -> None:
    paper = read_results(clicks).paper
    assert paper is not None
    notes = paper.notes
    text = (clicks / "report.html").read_text()
    section = text[text.index('<section id="tables"') : text.index('<section id="figures"')]
    assert all(escape(note) in section for note in notes)
    assert len(notes) == 2
    quoted = read_results(ratings).paper
    assert quoted is not None
    assert quoted.notes == ()
    assert "shows its click results" not in (ratings / "report.html").read_text()


def test_what_is_missing_is_said_at_the_top(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "OUT", unfinished=(("paml", 1), ("melu", 0), ("melu", 1)))
    results = summarise_again(folder)
    text = page(results, all_tables(results), {})
    cells = 2 * len(results.plan.entries)
    assert f"3 of {cells} cells are missing" in text
    assert text.index("Not finished") < text.index("<nav")
    assert "MeLU (seed 0, 1)" in text
    outline(text)


def test_nothing_finished_is_a_page_too(tmp_path: Path) -> None:
    cells = tuple((name, seed) for name in ("bias", "paml") for seed in (0, 1))
    folder = write_comparison(tmp_path / "OUT", methods=["paml"], variants=(), baselines=["bias"], unfinished=cells)
    summarise_again(folder)
    outline(write_report(folder).read_text())


@pytest.mark.usefixtures("without_pdf")
def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "OUT", methods=["paml"], variants=(), baselines=["bias"], users=12)
    results = summarise_again(folder)
    plan = results.plan.model_copy(
        update={
            "recipe": NASTY,
            "data": results.plan.data.model_copy(update={"source": NASTY, "path": NASTY}),
            "settings": {"x": NASTY},
            "entries": tuple(entry.model_copy(update={"label": NASTY}) for entry in results.plan.entries),
        }
    )
    missing = (MissingCell(method="paml", seed=0),)
    results = results.model_copy(
        update={"plan": plan, "missing": missing, "verdict": (*results.verdict, NASTY)},
    )
    text = page(results, all_tables(results), figures(folder, results))
    elements = outline(text).elements
    assert "script" not in {tag for tag, _ in elements}
    assert "&lt;script&gt;" in text
    assert not [name for _, attributes in elements for name in attributes if name.startswith("on")]


def test_without_results_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="paml compare"):
        write_report(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(FormatError, match="is not JSON"):
        write_report(tmp_path)


def test_text_stands_out_in_both_schemes() -> None:
    template = (Path(write_report.__code__.co_filename).parent / "page.html").read_text()
    schemes = re.findall(
        r"--paper: (#\w+); --ink: (#\w+); --soft: (#\w+);.*?--wash: (#\w+); --link: (#\w+); --warn: (#\w+);"
        r"\s*--warn-wash: (#\w+);",
        template,
    )
    assert len(schemes) == 3  # light, dark, printed
    for scheme in schemes:
        paper, ink, soft, wash, link, warn, warn_wash = (
            re.sub(r"^#(.)(.)(.)$", r"#\1\1\2\2\3\3", colour) for colour in scheme
        )
        for text, ground in (
            (ink, paper),
            (soft, paper),
            (link, paper),
            (ink, wash),
            (warn, warn_wash),
            (ink, warn_wash),
        ):
            assert contrast(text, ground) >= 4.5


def opened(browser: Any, folder: Path, width: int, scheme: str) -> tuple[Any, list[str]]:
    """The page as a browser shows it, and what it complained about or asked for."""
    shown = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    shown.set_default_timeout(1000 * PATIENCE)
    complaints: list[str] = []
    shown.on("console", lambda message: complaints.append(message.text))
    shown.on("pageerror", lambda error: complaints.append(str(error)))
    shown.on("request", lambda request: complaints.append(request.url))
    path = (folder / "report.html").as_uri()
    shown.goto(path)
    return shown, [complaint for complaint in complaints if complaint != path]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", ["ratings", "clicks"])
def test_in_a_browser(browser: Any, kind: str, width: int, scheme: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    shown, complaints = opened(browser, folder, width, scheme)
    assert complaints == []
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    boxes = shown.evaluate("[...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().toJSON())")
    assert len(boxes) == len(list((folder / "figures").glob("*.svg")))
    for box in boxes:
        assert box["width"] > 250
        assert box["height"] > 80
        assert box["left"] >= 0
        assert box["right"] <= width
    wide = shown.evaluate("[...document.querySelectorAll('.scroll')].map(s => s.getBoundingClientRect().right)")
    assert max(wide) <= width
    if width == 1280:  # no column is cut off
        beyond = shown.evaluate(
            "[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth)"
            ".map(s => s.parentNode.id)"
        )
        assert beyond == []
    ink, paper = shown.evaluate(
        "[getComputedStyle(document.querySelector('figure svg text')).fill,"
        " getComputedStyle(document.body).backgroundColor].map(c => c.match(/\\d+/g).slice(0, 3).map(Number))"
    )
    assert (sum(ink) > sum(paper)) == (scheme == "dark")
    hexes = ["#" + "".join(f"{part:02x}" for part in colour) for colour in (ink, paper)]
    assert contrast(*hexes) >= 7
    shown.close()


def test_a_browser_shows_the_tables_as_they_are(browser: Any, ratings: Path) -> None:
    shown, _ = opened(browser, ratings, 1280, "light")
    read = shown.evaluate(
        "Object.fromEntries([...document.querySelectorAll('article')].map(a => [a.id,"
        " [...a.querySelectorAll('tbody tr')].map(r => [...r.children].map(c => c.textContent))]))"
    )
    results = read_results(ratings)
    assert read == {f"table-{table.name}": [list(row) for row in table.rows] for table in all_tables(results)}
    cells = [cell for row in read["table-comparison"] for cell in row]
    mean = results.mean("reg_paml")
    assert any(cell.startswith(f"{mean:.3f}") for cell in cells)
    shown.close()


def test_figures_text_stays_within_its_figure(browser: Any, ratings: Path) -> None:
    """Whatever font a browser has: no name is cut off."""
    shown, _ = opened(browser, ratings, 1280, "light")
    outside = shown.evaluate(
        "[...document.querySelectorAll('figure svg')].flatMap(s => { const b = s.getBoundingClientRect();"
        " return [...s.querySelectorAll('text')].filter(t => { const r = t.getBoundingClientRect();"
        " return r.left < b.left - 8 || r.right > b.right + 8 || r.top < b.top - 2 || r.bottom > b.bottom + 2; })"
        ".map(t => t.textContent); })"
    )
    assert outside == []
    shown.close()
