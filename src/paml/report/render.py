"""A table as plain text for the terminal, as Markdown and as LaTeX (booktabs)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Literal, get_args

from paml.analysis.format import NOTHING
from paml.analysis.plan import Better
from paml.errors import SettingsError, nearest

Form = Literal["text", "markdown", "latex"]
SUFFIXES: dict[Form, str] = {"text": "txt", "markdown": "md", "latex": "tex"}
STAR = "*"
NOTE_WIDTH = 100
_MARKED = "Bold: best; italic: second best."
_FIRST, _SECOND = " (1)", " (2)"
_LATEX = {
    **{symbol: f"\\{symbol}" for symbol in "&%$#_{}"},
    **{symbol: f"{{{symbol}}}" for symbol in "[]*"},  # after the end of a line, these would be read as its arguments
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": "$<$",
    ">": "$>$",
    '"': "''",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
}
_MARKDOWN = {symbol: f"\\{symbol}" for symbol in "\\|*_`[]#"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


@dataclass(frozen=True)
class Table:
    """Text in cells, and which of them are marked. A star after a number is the paper's t-test."""

    name: str
    """For file names."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    best: frozenset[tuple[int, int]] = frozenset()
    """Row and column of cells set in bold."""
    second: frozenset[tuple[int, int]] = frozenset()
    rules: tuple[int, ...] = ()
    """Rows before which a rule is drawn."""

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers only (and is aligned to the right)."""
        cells = [row[column] for row in self.rows if row[column] not in (NOTHING, "")]
        return column > 0 and all(cell.lstrip("−+<")[:1].isdigit() for cell in cells)


def ranked(
    columns: list[list[float | None]], directions: Sequence[Better]
) -> tuple[frozenset[tuple[int, int]], frozenset[tuple[int, int]]]:
    """The cells of the best and of the second best values; equal values share a place, a single one is not ranked."""
    marked: tuple[set[tuple[int, int]], set[tuple[int, int]]] = (set(), set())
    for j, (values, direction) in enumerate(zip(columns, directions, strict=True), start=1):
        known = sorted({value for value in values if value is not None}, reverse=direction == "higher")
        for place, cells in zip(known[: len(marked)] if len(known) > 1 else [], marked, strict=False):
            cells.update((k, j) for k, value in enumerate(values) if value == place)
    return frozenset(marked[0]), frozenset(marked[1])


def render(table: Table, form: Form) -> str:
    """The table as a text that ends with a line break."""
    forms = {"text": _text, "markdown": _markdown, "latex": _latex}
    if form not in forms:
        raise SettingsError(f"unknown form '{form}'", remedy=nearest(form, get_args(Form)))
    return forms[form](_in_lines(table))


def _in_lines(table: Table) -> Table:
    """A line per row: a value of a profile may hold line breaks."""

    def joined(text: str) -> str:
        return " ".join(text.split())

    rows = tuple(tuple(joined(cell) for cell in row) for row in table.rows)
    columns = tuple(joined(title) for title in table.columns)
    return replace(table, title=joined(table.title), columns=columns, rows=rows, note=joined(table.note))


def _text(table: Table) -> str:
    """Marks follow the numbers, so that the numbers stay aligned."""
    width = len(table.columns)
    parts = [[_parted(table, k, j) for j in range(width)] for k in range(len(table.rows))]
    columns = []
    for j, title in enumerate(table.columns):
        tail = max((len(row[j][1]) for row in parts), default=0)
        cells = [row[j][0] + row[j][1].ljust(tail) for row in parts]
        wide = max(map(len, [title, *cells]))
        columns.append([cell.rjust(wide) if table.numeric(j) else cell.ljust(wide) for cell in [title, *cells]])
    lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    rule = "─" * max(map(len, lines))
    body = [line for k, text in enumerate(lines[1:]) for line in ([rule, text] if k in table.rules else [text])]
    marks = ", ".join(f"{mark.strip()} {word}" for mark, word, cells in _marks(table) if cells)
    notes = [line for part in (marks, table.note) for line in wrap(part, NOTE_WIDTH)]
    return "\n".join([table.title, "", lines[0], rule, *body, *(["", *notes] if notes else [])]) + "\n"


def _marks(table: Table) -> list[tuple[str, str, frozenset[tuple[int, int]]]]:
    return [(_FIRST, "best", table.best), (_SECOND, "second best", table.second)]


def _parted(table: Table, row: int, column: int) -> tuple[str, str]:
    """A cell's number and its marks."""
    cell = table.rows[row][column]
    number = cell.removesuffix(STAR)
    marks = "".join(mark for mark, _, cells in _marks(table) if (row, column) in cells)
    return number, cell[len(number) :] + marks


def _markdown(table: Table) -> str:
    """Rules are omitted: Markdown has none within a table."""

    def cell(row: int, column: int) -> str:
        text = _escaped(table.rows[row][column], _MARKDOWN)
        if (row, column) in table.best:
            return f"**{text}**"
        return f"_{text}_" if (row, column) in table.second else text

    width = range(len(table.columns))
    lines = [
        [_escaped(title, _MARKDOWN) for title in table.columns],
        ["---:" if table.numeric(j) else "---" for j in width],
        *([cell(k, j) for j in width] for k in range(len(table.rows))),
    ]
    body = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    note = f"\n{_escaped(_note(table), _MARKDOWN)}\n" if _note(table) else ""
    return f"### {_escaped(table.title, _MARKDOWN)}\n\n{body}\n{note}"


def _latex(table: Table) -> str:
    """A floating table; needs the package booktabs."""

    def cell(row: int, column: int) -> str:
        number, star = table.rows[row][column].removesuffix(STAR), table.rows[row][column].endswith(STAR)
        text = _escaped(number, _LATEX)
        if (row, column) in table.best:
            text = rf"\textbf{{{text}}}"
        elif (row, column) in table.second:
            text = rf"\emph{{{text}}}"
        return text + "$^{*}$" if star else text

    width = range(len(table.columns))
    body = []
    for k in range(len(table.rows)):
        if k in table.rules:
            body.append(r"\midrule")
        body.append(" & ".join(cell(k, j) for j in width) + r" \\")
    note = [r"\par\smallskip", rf"{{\footnotesize {_escaped(_note(table), _LATEX)}\par}}"] if _note(table) else []
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(table.title, _LATEX)}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{''.join('r' if table.numeric(j) else 'l' for j in width)}}}",
        r"\toprule",
        " & ".join(_escaped(title, _LATEX) for title in table.columns) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *note,
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _note(table: Table) -> str:
    """The note, and what bold and italic mean."""
    return f"{table.note} {_MARKED}".strip() if table.best else table.note


def _escaped(text: str, symbols: dict[str, str]) -> str:
    return "".join(symbols.get(symbol, symbol) for symbol in text)
