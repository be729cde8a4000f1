"""What the values of one text column reveal: numbers, times, lists, codes, blanks."""

import re
from collections.abc import Sequence
from functools import cached_property

import polars as pl

from paml.data.infer.sample import LIST_MARK
from paml.data.readers.delimited import TIME_FORMATS
from paml.data.schema import ON_SCALE
from paml.data.time_unit import unit_of

SURE_BLANKS = {"null", "(null)", "n/a", "n.a.", "#n/a", "<na>", "\\n", "nan", "?"}
PYTHON_BLANK = "None"  # what programs write for nothing; a lower-case "none" among texts may be an answer
BLANKS_AMONG_NUMBERS = {"na", "none", "nil", "-", "--", "unknown", "missing"}  # among texts they may be real values
MOSTLY = 0.9  # share of rows that are numbers in a column of numbers with some dirt
NEARLY_UNIQUE = 0.8
MAX_LEVELS = 101  # largest number of values on a rating scale
CLICKS = (0.0, 1.0)


class Column:
    """A column of a sample; every fact is computed on first use."""

    def __init__(self, name: str, values: pl.Series, stated: str | None = None) -> None:
        self.name, self.values, self.stated = name, values, stated

    @cached_property
    def known(self) -> pl.Series:
        """Values that are not blank."""
        return self.values.drop_nulls()

    @cached_property
    def distinct(self) -> pl.Series:
        """Each known value once."""
        return self.known.unique()

    @property
    def blank_share(self) -> float:
        """Share of blank values."""
        return 1 - len(self.known) / max(len(self.values), 1)

    @property
    def repeats(self) -> bool:
        """Whether some value occurs more than once."""
        return len(self.distinct) < len(self.known)

    @property
    def is_unique(self) -> bool:
        """Whether it can be the key of a table: (almost) no value occurs twice, none is blank."""
        return len(self.distinct) >= 0.99 * len(self.values) and self.blank_share == 0

    @property
    def is_nearly_unique(self) -> bool:
        """Whether most values occur once, as titles and names do."""
        return len(self.distinct) >= NEARLY_UNIQUE * len(self.known)

    @cached_property
    def numbers(self) -> pl.Series | None:
        """The distinct values as sorted numbers, if all of them are numbers."""
        return self.mostly_numbers(1.0)

    def mostly_numbers(self, share: float) -> pl.Series | None:
        """The distinct values that are numbers, sorted, if they are at least `share` of all distinct values."""
        numbers = self.distinct.cast(pl.Float64, strict=False)
        finite = numbers.filter(numbers.is_finite().fill_null(False))
        return finite.unique().sort() if len(finite) and len(finite) >= share * len(self.distinct) else None

    @cached_property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers."""
        return self.numbers is not None and bool((self.numbers == self.numbers.round()).all())

    @cached_property
    def has_leading_zeros(self) -> bool:
        """Whether there are codes such as 01234."""
        return bool(self.distinct.str.contains(r"^0\d").any())

    @cached_property
    def has_decimal_commas(self) -> bool:
        """Whether the values are numbers such as 3,5."""
        matches = bool(self.distinct.str.contains(r"^-?\d*(,\d+)?$").all())
        return matches and self.numbers is None and len(self.distinct) > 0

    @cached_property
    def is_row_number(self) -> bool:
        """Whether the values just number the rows."""
        if not self.is_whole or len(self.values) < 3 or self.blank_share:
            return False
        return bool((self.known.cast(pl.Float64).diff().drop_nulls() == 1).all())

    @cached_property
    def scale(self) -> tuple[float, float, float] | None:
        """Lowest value, highest value and step, if (almost) all values are a few evenly spaced numbers."""
        numbers = self.mostly_numbers(1.0 if len(self.distinct) < 20 else 0.9) if self.dirt is None else self.cleaned
        if numbers is None or not 2 <= len(numbers) <= MAX_LEVELS:
            return None
        low, high = float(numbers[0]), float(numbers[-1])
        step = round(float(numbers.diff().drop_nulls().min()), 6)  # type: ignore[arg-type]
        if bool((numbers == numbers.round()).all()) and high - low <= 10:
            step = 1.0
        steps = (numbers - low) / step
        fits = bool(((steps - steps.round()).abs() < ON_SCALE).all()) and (high - low) / step < MAX_LEVELS
        if not fits:
            return None
        levels = round((high - low) / step)  # by which the length can be divided exactly, as 1 by 3
        near = [round(value, 6) for value in (low, high)]
        if max(abs(near[0] - low), abs(near[1] - high)) < ON_SCALE * step / 10:
            low, high = near
        return low, high, (high - low) / levels

    @property
    def is_click(self) -> bool:
        """Whether the values are 0 and 1."""
        return self.cleaned is not None and tuple(self.cleaned) == CLICKS

    @cached_property
    def time(self) -> str | None:
        """What kind of time the values are, by format or magnitude; None if they are not times."""
        if self.stated == "time":
            return "date and time by its type"
        if self.numbers is not None:
            low, high = float(self.numbers[0]), float(self.numbers[-1])
            unit = unit_of(low, high)
            return None if unit is None or self.has_leading_zeros else f"unix {unit} by their magnitude"
        for form in TIME_FORMATS:  # all values must match one format: a file is read with one
            if self.distinct.str.to_datetime(form, strict=False).is_not_null().all() and len(self.distinct):
                return f"dates like {self.known[0]}"
        return None

    @property
    def mean_length(self) -> float:
        """Mean number of characters of the distinct values."""
        return float(self.distinct.str.len_chars().mean() or 0)  # type: ignore[arg-type]

    @cached_property
    def is_address(self) -> bool:
        """Whether most values are web addresses."""
        return bool(self.distinct.str.contains(r"^(https?://|www\.)").mean() > 0.5) if len(self.distinct) else False  # type: ignore[operator]

    @cached_property
    def list_separator(self) -> str | None:
        """What separates the parts, if values are lists: it is frequent, and parts recur in other values.

        A bar is always taken as a separator. Commas and semicolons must also join varying numbers of parts into more
        combinations than there are parts: `Paris, France` is one value.
        """
        if self.stated in {"list", "token_seq"}:
            return LIST_MARK if self.stated == "list" else " "
        for separator in ("|", ";", ", ", ","):
            parts = self.distinct.str.split(separator)
            widths = parts.list.len()
            flat = parts.explode().str.strip_chars()
            rows = self.known.str.split(separator).explode() if separator == "|" else flat
            if (widths > 1).sum() < 0.3 * len(widths) or len(rows) < 1.5 * flat.n_unique():
                continue
            few = flat.n_unique() < 0.8 * len(self.distinct) and widths.n_unique() > 1
            if separator == "|" or few:
                return separator
        return None

    def tokens(self) -> list[str]:
        """The column's name as words: `movieId` and `MOVIE_ID` both give movie and id."""
        return tokens(self.name)

    def blanks(self) -> list[str]:
        """Values that mean "not known", such as NULL."""
        maybe = self.known.filter(self.known.str.len_chars() <= max(map(len, BLANKS_AMONG_NUMBERS)))
        counts = dict(maybe.value_counts(name="n", sort=True).iter_rows())
        least = 1 if self.is_nearly_unique else 0
        sure = [
            token
            for token, count in counts.items()
            if (token.lower() in SURE_BLANKS or token == PYTHON_BLANK) and count > least
        ]
        rare = [token for token in counts if token.lower() in BLANKS_AMONG_NUMBERS and token not in sure]
        if rare and Column(self.name, self.known.filter(~self.known.is_in([*sure, *rare]))).is_measured:
            return [*sure, *rare]
        return sure

    @property
    def is_measured(self) -> bool:
        """Whether the values are numbers, perhaps with some dirt, or times."""
        return len(self.known) > 0 and (self.dirt is not None or self.time is not None)

    @cached_property
    def dirt(self) -> list[str] | None:
        """Distinct values that are not numbers, the most frequent first, if nearly all rows are; else None.

        A letter before a digit makes codes, such as those of Canadian places among those of American ones.
        """
        clean = self.known.cast(pl.Float64, strict=False).is_finite().fill_null(False)
        if not len(self.known) or clean.mean() < MOSTLY:  # type: ignore[operator]
            return None
        dirt = self.known.filter(~clean).value_counts(sort=True).to_series(0)
        return None if dirt.str.contains(r"\p{L}\d").any() else dirt.to_list()

    @property
    def cleaned(self) -> pl.Series | None:
        """The numbers, sorted, each once, if there are none but numbers and some dirt."""
        return None if self.dirt is None else self.mostly_numbers(0.0)

    def without_dirt(self) -> "Column":
        """The same column with nothing but its numbers."""
        return self.where(~self.values.is_in(self.dirt or []).fill_null(False))

    def where(self, rows: pl.Series) -> "Column":
        """The same column, restricted to some rows."""
        return Column(self.name, self.values.filter(rows), self.stated)


def tokens(name: str) -> list[str]:
    """Lower-case words of a name in any spelling."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return [word.lower() for word in re.findall(r"[^\W_]+", spaced)]


def one_to_one(a: Column, b: Column) -> bool:
    """Whether each value of one column occurs with one value of the other: they carry the same information."""
    if len(a.distinct) != len(b.distinct) or a.blank_share != b.blank_share:
        return False
    pairs = pl.DataFrame({"a": a.values, "b": b.values}).n_unique()
    return pairs == a.values.n_unique() == b.values.n_unique()


def leaks_target(column: Column, target: Column) -> bool:
    """Whether a column leaks the target: one is a function of the other, and not just because values are rare."""
    if not 2 <= len(column.distinct) <= len(column.known) / 10:
        return False
    both = pl.DataFrame({"a": column.values, "b": target.values}).drop_nulls()
    counts = both["a"].n_unique(), both["b"].n_unique()
    return min(counts) > 1 and both.n_unique() in counts


def same_values(a: Column, others: Sequence[Column]) -> bool:
    """Whether a column is a copy of another one, row by row."""
    return any(a.values.equals(other.values) for other in others)
