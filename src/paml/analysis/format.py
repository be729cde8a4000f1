"""Numbers and lists in words, for the verdict and the tables: rounded sensibly, and never "nan" or "None"."""

import math
from collections.abc import Sequence

from paml.analysis.tests import Interval

NOTHING = "–"
SMALLEST = -6  # powers of ten below this are written as such


def number(value: float | None, places: int = 3) -> str:
    """Fixed decimal places with a true minus sign; values that round to zero have no sign."""
    if value is None:
        return NOTHING
    text = f"{value:,.{places}f}"
    return text.replace("-", "−") if any(digit in text for digit in "123456789") else text.removeprefix("-")


def signed(value: float, places: int = 3) -> str:
    """The same, with a plus sign where it is positive."""
    return ("+" if value > 0 else "") + number(value, places)


def spread(mean: float | None, deviation: float | None, places: int = 3) -> str:
    """mean ± standard deviation; the mean alone with a single seed."""
    middle = number(mean, places)
    return middle if mean is None or deviation is None else f"{middle} ± {number(deviation, places)}"


def amount(value: float | None) -> str:
    """About three significant digits, however small: seconds, milliseconds, megabytes, bounds."""
    if value is None:
        return NOTHING
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text, small = f"{value:.3g}", significant(value)
    return text if "e" not in text else small if "e" in small else small.rstrip("0")


def significant(value: float | None, digits: int = 3) -> str:
    """So many significant digits, however small the number: 0.000998, −0.0000012, 3.1e−9."""
    if value is None or value == 0:
        return NOTHING if value is None else "0"
    size = math.floor(math.log10(abs(value)))
    if size < SMALLEST:
        return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("-", "−")
    return number(value, max(digits - 1 - size, 0))


def exact(value: float) -> str:
    """A level of a scale with all of its digits, and none of binary fractions: 3.8, 0.857142857143."""
    return f"{value:.12g}"


def precise(value: float | None, places: int) -> str:
    """At least so many decimal places, and at least two significant digits."""
    if value is None or value == 0 or abs(value) >= 10 ** (1 - places):
        return number(value, places)
    return significant(value, 2)


def precise_interval(found: Interval | None, places: int) -> str:
    """Its bounds, each with digits enough to see it."""
    return NOTHING if found is None else f"{precise(found.low, places)} to {precise(found.high, places)}"


def percent(share: float, places: int = 1) -> str:
    """0.059 is "5.9 %"."""
    return f"{100 * share:.{places}f} %"


def p_value(p: float | None) -> str:
    """For a table: "0.034" or "<0.001"; a value just below 0.05 is not rounded up to it."""
    if p is None:
        return NOTHING
    return "<0.001" if p < 0.001 else "<0.05" if p < 0.05 <= round(p, 3) else f"{p:.3f}"


def p_words(p: float | None) -> str:
    """For a sentence: "p = 0.034" or "p < 0.001"."""
    text = p_value(p)
    return "p unknown" if p is None else f"p < {text[1:]}" if text[0] == "<" else f"p = {text}"


def interval(found: Interval | None, places: int = 3) -> str:
    """For a table: "−0.061 to −0.049"."""
    return NOTHING if found is None else f"{number(found.low, places)} to {number(found.high, places)}"


def count(n: int, noun: str) -> str:
    """1 user, 2 users."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def listing(names: Sequence[str], max_names: int | None = None) -> str:
    """a, b and c; beyond `max_names` names, how many more."""
    shown = list(names)
    if max_names is not None and len(shown) > max_names + 1:
        shown = [*shown[:max_names], f"{len(shown) - max_names} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def upper(text: str) -> str:
    """Capitalised, to begin a sentence; names with their own capitals ("nDCG") never begin one."""
    return text[:1].upper() + text[1:]
