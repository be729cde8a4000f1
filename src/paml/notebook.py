"""Small HTML for notebooks: tables and one figure, for whatever a cell ends with.

All text is escaped. Nothing has a script or a colour of its own for text and ground, so that light and dark notebooks
show it in theirs; marks have colours that stand out on both.
"""

from collections.abc import Iterable, Sequence
from html import escape

WIDTH, HEIGHT = 460, 120
LEFT, BELOW, ABOVE = 10, 30, 6  # margins of a figure, in pixels
LABELS = 150  # pixels for the names of lines
LINE = 20  # pixels per named line
BLUE, ORANGE = "#2a83cc", "#d07a10"
CELL = "padding:2px 10px 2px 0;text-align:{};vertical-align:top;border:0;background:none;color:inherit"
MAX_TEXT = 200


def card(title: str, *parts: str) -> str:
    """A title, and what belongs to it."""
    inside = "".join(f'<div style="margin:4px 0">{part}</div>' for part in parts if part)
    return f'<div style="line-height:1.4"><div><strong>{text(title)}</strong></div>{inside}</div>'


def text(value: object) -> str:
    """Escaped, and not longer than a line."""
    plain = str(value)
    return escape(plain if len(plain) <= MAX_TEXT else f"{plain[: MAX_TEXT - 1]}…")


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), numbers: Iterable[int] = ()) -> str:
    """Rows of text, under a header if there is one; the columns `numbers` are aligned to the right."""
    right = set(numbers)

    def line(row: Sequence[object], tag: str) -> str:
        sides = ("right" if k in right else "left" for k in range(len(row)))
        cells = zip(row, sides, strict=True)
        return "".join(f'<{tag} style="{CELL.format(side)}">{text(value)}</{tag}>' for value, side in cells)

    head = f"<thead><tr>{line(header, 'th')}</tr></thead>" if header else ""
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    style = "border-collapse:collapse;margin:0;width:auto;font-size:inherit;font-variant-numeric:tabular-nums"
    return f'<table style="{style}">{head}<tbody>{body}</tbody></table>'


def more(title: str, sentences: Iterable[str]) -> str:
    """Sentences that are shown when the title is clicked."""
    inside = "".join(f"<div>{escape(sentence)}</div>" for sentence in sentences)
    return f"<details><summary>{text(title)}</summary>{inside}</details>" if inside else ""


def bars(
    parts: Sequence[tuple[str, Sequence[float], str]],
    ends: tuple[str, str],
    about: str,
    mark: tuple[float, str] | None = None,
) -> str:
    """A histogram: `parts` have a label, heights and a colour, and stand on each other; `mark` is a place, 0 to 1."""
    heights = [sum(column) for column in zip(*(part for _, part, _ in parts), strict=True)]
    step, room, most = (WIDTH - 2 * LEFT) / len(heights), HEIGHT - BELOW - (LINE if mark else ABOVE), max(*heights, 1)
    base, drawn = [0.0] * len(heights), []
    for label, part, colour in parts:
        for k, height in enumerate(part):
            if height:
                size = room * height / most
                top, title = HEIGHT - BELOW - base[k] - size, f"<title>{text(f'{label}: {height:,.0f}')}</title>"
                place = f'x="{LEFT + k * step + 0.5:.1f}" y="{top:.1f}" width="{step - 1:.1f}" height="{size:.1f}"'
                drawn.append(f'<rect {place} fill="{colour}">{title}</rect>')
                base[k] += size
    if mark is not None:
        x = LEFT + min(max(mark[0], 0.0), 1.0) * (WIDTH - 2 * LEFT)
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT - BELOW}" {_ink(2)}/>')
        drawn.append(_words(x + (4 if x < WIDTH / 2 else -4), 11, mark[1], "start" if x < WIDTH / 2 else "end"))
    return _svg([*drawn, _axis(HEIGHT - BELOW), *_ends(ends, about, HEIGHT)], HEIGHT, about) + _legend(parts)


def curve(values: Sequence[float | None], best: int | None, ends: tuple[str, str], about: str) -> str:
    """A line through values, with the lowest and the highest named, and the `best` one as a point."""
    known = [(k, value) for k, value in enumerate(values) if value is not None]
    low, high = min(value for _, value in known), max(value for _, value in known)
    room, span = HEIGHT - BELOW - 2 * ABOVE, (high - low) or 1.0
    right = WIDTH - LEFT - 60  # the values' own room

    def at(k: int, value: float) -> tuple[float, float]:
        return LEFT + k * (right - LEFT) / max(len(values) - 1, 1), ABOVE + room * (high - value) / span

    points = " ".join("{:.1f},{:.1f}".format(*at(k, value)) for k, value in known)
    drawn = [f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="2"/>']
    for k, value in known:
        x, y = at(k, value)
        size = 4 if k == best else 2
        drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{BLUE}"><title>{value:.4f}</title></circle>')
    drawn += [_words(WIDTH - LEFT, at(0, value)[1] + 4, f"{value:.4f}", "end") for value in sorted({low, high})]
    return _svg([*drawn, _axis(HEIGHT - BELOW), *_ends(ends, about, HEIGHT)], HEIGHT, about)


def intervals(lines: Sequence[tuple[str, float, float, str]], about: str) -> str:
    """A named line each: a value, how far its interval reaches to both sides, and a colour."""
    low = min(value - reach for _, value, reach, _ in lines)
    high = max(value + reach for _, value, reach, _ in lines)
    span, height = (high - low) or 1.0, LINE * len(lines) + BELOW
    first, last = LABELS + 10, WIDTH - 60

    def at(value: float) -> float:
        return first + (last - first) * (value - low) / span

    drawn = []
    for k, (name, value, reach, colour) in enumerate(lines):
        y = LINE * k + LINE / 2
        drawn.append(_words(LABELS, y + 4, name if len(name) < 24 else f"{name[:22]}…", "end"))
        if reach:
            ends = f'x1="{at(value - reach):.1f}" x2="{at(value + reach):.1f}"'
            drawn.append(f'<line {ends} y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
        drawn.append(f'<circle cx="{at(value):.1f}" cy="{y}" r="4" fill="{colour}"><title>{value:.4f}</title></circle>')
    ticks = [_words(at(value), height - 16, f"{value:.3g}", "middle") for value in sorted({low, high})]
    return _svg([*drawn, *ticks, _words((first + last) / 2, height - 3, about, "middle")], height, about)


def _svg(parts: Iterable[str], height: float, about: str) -> str:
    box = f'viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
    style = "max-width:100%;font-size:11px;color:inherit;overflow:visible"
    return f'<svg {box} role="img" aria-label="{text(about)}" style="{style}">{"".join(parts)}</svg>'


def _ink(width: float) -> str:
    return f'stroke="currentColor" stroke-width="{width:g}"'


def _axis(y: float) -> str:
    return f'<line x1="{LEFT}" x2="{WIDTH - LEFT}" y1="{y}" y2="{y}" {_ink(1)} opacity="0.4"/>'


def _ends(ends: tuple[str, str], about: str, height: float) -> list[str]:
    y = height - BELOW + 14
    left, right = _words(LEFT, y, ends[0], "start"), _words(WIDTH - LEFT, y, ends[1], "end")
    return [left, right, _words(WIDTH / 2, y, about, "middle")]


def _words(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="currentColor" text-anchor="{anchor}">{text(words)}</text>'


def _legend(parts: Sequence[tuple[str, Sequence[float], str]]) -> str:
    if len(parts) < 2:
        return ""
    named = (f'<span style="color:{colour}">■</span> {text(label)}&emsp;' for label, _, colour in parts)
    return f'<div style="font-size:11px">{"".join(named)}</div>'
