"""A comparison as one self-contained HTML page: verdict, tables, figures, and how it was made."""

import re
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from string import Template

from paml.analysis.format import count, exact, listing
from paml.analysis.plan import Plan
from paml.analysis.results import Results
from paml.analysis.verdict import costs
from paml.report.figures import Figure
from paml.report.glossary import glossary
from paml.report.list_tables import is_about_lists
from paml.report.render import Table

FIRST = "comparison"  # the figure beside the verdict
LIST_FIGURES = ("list_shots",)  # those beside the tables of lists
_LONG = 28  # cells with more characters may be broken into lines
_SOURCES = {
    "ml-1m": "MovieLens-1M",
    "bookcrossing": "BookCrossing",
    "taobao": "Taobao",
    "synthetic": "the embedded data set",
}


def page(results: Results, tables: Sequence[Table], figures: Mapping[str, Figure], folder: str = "OUT") -> str:
    """The page; `folder` is the comparison's folder as the commands name it."""
    lists = {name: figure for name, figure in figures.items() if name in LIST_FIGURES}
    others = {name: figure for name, figure in figures.items() if name != FIRST and name not in lists}
    rows = [table for table in tables if not is_about_lists(table.name)]
    sections = {
        "verdict": ("What was found", _opening(results, figures.get(FIRST))),
        "shown": ("What a user would be shown", _shown(tables, lists)),
        "tables": ("Tables", "\n".join(_table(table) for table in rows) + _beside_paper(results)),
        "figures": ("Figures", _figures(others) if others else ""),
        "glossary": ("Glossary", _glossary(results)),
        "made": ("How it was made", _made(results, folder)),
    }
    shown = {name: section for name, section in sections.items() if section[1]}
    template = Template(files("paml.report").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(_title(results)),
        about=escape(_about(results)),
        missing=_missing(results),
        contents="".join(f'<li><a href="#{name}">{title}</a></li>' for name, (title, _) in shown.items()),
        sections="\n".join(
            f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>\n{body}</section>'
            for name, (title, body) in shown.items()
        ),
        version=escape(version("paml")),
    )


def _title(results: Results) -> str:
    source = results.plan.data.source
    return f"Cold-start methods on {_SOURCES.get(source, source)}"


def _about(results: Results) -> str:
    plan, data = results.plan, results.plan.data
    learned = sum(entry.learned for entry in plan.entries)
    sizes = [count(data.users, "user"), count(data.items, "item"), count(data.interactions, data.known)]
    compared = f"{count(learned, 'method')} and {count(len(plan.entries) - learned, 'simpler predictor')}"
    return f"{compared}, {count(len(plan.seeds), 'seed')}; {listing(sizes)}; recipe “{plan.recipe}”."


def _missing(results: Results) -> str:
    """At the top: what a half-finished grid lacks."""
    plan, cells = results.plan, results.missing
    if not cells:
        return ""
    seeds: dict[str, list[str]] = {}
    for cell in cells:
        seeds.setdefault(plan.labels[cell.method], []).append(str(cell.seed))
    total = len(plan.entries) * len(plan.seeds)
    are = "is" if len(cells) == 1 else "are"
    lines = [f"{label} (seed {', '.join(numbers)})" for label, numbers in seeds.items()]
    return (
        '<div class="missing" role="note"><p><strong>Not finished:</strong> '
        f"{len(cells)} of {count(total, 'cell')} {are} missing, and everything below is preliminary."
        " Run the same command again to continue.</p>"
        f"<details><summary>Which</summary><p>{escape('; '.join(lines))}</p></details></div>"
    )


def _opening(results: Results, figure: Figure | None) -> str:
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in [*results.verdict, *costs(results)])
    verdict = f'<ul class="verdict">{sentences}</ul>' if sentences else "<p>Nothing is finished yet.</p>"
    return f'<div class="opening"><div>{verdict}</div>{_figure(FIRST, figure) if figure else ""}</div>'


def _table(table: Table) -> str:
    key = f"table-{_key(table.name)}"
    numeric = [table.numeric(j) for j in range(len(table.columns))]
    long = [max((len(row[j]) for row in table.rows), default=0) > _LONG for j in range(len(table.columns))]

    name = "" if table.columns[0] else ' class="name"'  # of an entry

    def kind(j: int) -> str:
        found = "long" if long[j] else "number" if numeric[j] else ""
        return f' class="{found}"' if found else ""

    def cell(k: int, j: int) -> str:
        text = escape(table.rows[k][j])
        if j == 0:
            return f'<th scope="row"{name}>{text}</th>'
        mark = "b" if (k, j) in table.best else "i" if (k, j) in table.second else ""
        return f"<td{kind(j)}><{mark}>{text}</{mark}></td>" if mark else f"<td{kind(j)}>{text}</td>"

    head = "".join(
        f'<th scope="col"{kind(j) if j else ""}>{escape(title) or _hidden("entry")}</th>'
        for j, title in enumerate(table.columns)
    )
    opening = dict.fromkeys(table.rules, '<tr class="rule">')
    lines = [
        f"{opening.get(k, '<tr>')}{''.join(cell(k, j) for j in range(len(row)))}</tr>"
        for k, row in enumerate(table.rows)
    ]
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<article id="{key}"><h3 id="{key}-title">{escape(table.title)}</h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{key}-title">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{chr(10).join(lines)}</tbody></table></div>{note}</article>"
    )


def _shown(tables: Sequence[Table], figures: Mapping[str, Figure]) -> str:
    """The tables and figures of lists of all items; empty if no entry ranks."""
    about = [_table(table) for table in tables if is_about_lists(table.name)]
    return "\n".join([*about, *([_figures(figures)] if figures else [])]) if about else ""


def _beside_paper(results: Results) -> str:
    """Notes on the paper where no table quotes it."""
    notes = results.paper.notes if results.paper is not None else ()
    return f'\n<p class="note">{escape(" ".join(notes))}</p>' if notes else ""


def _figures(figures: Mapping[str, Figure]) -> str:
    return f'<div class="figures">{chr(10).join(_figure(name, figure) for name, figure in figures.items())}</div>'


def _figure(name: str, figure: Figure) -> str:
    """Inline, so that it takes the page's colours; its own style and namespace are for the standalone file."""
    svg = re.sub(r"<style>.*?</style>|<title>[^<]*</title>(?=\s*<style>)", "", figure.svg, flags=re.DOTALL)
    svg = svg.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
    label = escape(f"{figure.title}. {figure.caption}")
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    caption = f"<h3>{escape(figure.title)}</h3><p>{escape(figure.caption)}</p>"
    return f'<figure id="figure-{_key(name)}"><figcaption>{caption}</figcaption>{svg}</figure>'


def _glossary(results: Results) -> str:
    """Closed until somebody asks."""
    terms = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in glossary(results).items())
    return f"<details><summary>What the words mean</summary><dl>{terms}</dl></details>"


def _made(results: Results, folder: str) -> str:
    plan, data = results.plan, results.plan.data
    settings = ", ".join(f"{key} = {value}" for key, value in plan.settings.items())
    facts = {
        "data": f"{_SOURCES.get(data.source, data.source)}, {data.path}",
        "fingerprint": data.fingerprint,
        "recipe": f"{plan.recipe}{f', with {settings}' if settings else ''}",
        "seeds": f"{', '.join(str(seed) for seed in plan.seeds)}; {_splits(plan)}",
        "methods": ", ".join(plan.names("method", "variant")) or "none",
        "baselines": ", ".join(plan.names("baseline", "reference")) or "none",
        "version": plan.created_by,
    }
    if results.environments:
        facts["computed with"] = "; then ".join(str(one) for one in results.environments)
    terms = "".join(f"<dt>{escape(term)}</dt><dd>{escape(fact)}</dd>" for term, fact in facts.items())
    commands = escape("\n".join(_commands(plan, folder)))
    return (
        f'<dl>{terms}</dl>\n<h3>How to repeat it</h3><pre tabindex="0">{commands}</pre>'
        '<p class="note">Every number comes from the Parquet files beside this page; each table and figure is also'
        " a file there (tables as text, Markdown and LaTeX, figures as SVG and PDF).</p>"
    )


def _splits(plan: Plan) -> str:
    return "all with the same split of the users" if plan.same_split else "each with its own split of the users"


def _commands(plan: Plan, folder: str) -> list[str]:
    """The commands that repeat the comparison, and that write its report again."""
    settings = [f"{key}={value}" for key, value in plan.settings.items()]
    parts = [
        ["paml", "compare", plan.data.path, *settings],
        ["--methods", ",".join(plan.names("method")) or "none"],
        ["--baselines", ",".join(plan.names("baseline", "reference")) or "none"],
        *(["--variant", variant] for variant in plan.names("variant")),
        ["--recipe", plan.recipe, "--seeds", str(len(plan.seeds))],
        ["--same-split"] if plan.same_split else [],
        ["--group-by", plan.group_by] if plan.group_by else [],
        ["--liked", exact(plan.liked)] if plan.data.target != "click" else [],
        ["--out", folder],
    ]
    return [" \\\n    ".join(shlex.join(part) for part in parts if part), shlex.join(["paml", "report", folder])]


def _hidden(text: str) -> str:
    """A column's name for screen readers."""
    return f'<span aria-label="{text}"></span>'


def _key(name: str) -> str:
    """A name as an id."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)
