"""The schema of tables without a description: guessed from samples, with a reason for every guess."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from paml.data.infer.columns import Column, leaks_target, one_to_one, same_values
from paml.data.infer.roles import (
    NO_TARGET,
    Found,
    Link,
    Table,
    connect,
    find_amount,
    find_event,
    find_key,
    find_target,
    find_time,
    named_target,
    settled_by,
    sides,
)
from paml.data.infer.sample import LIST_MARK, Sample
from paml.data.schema import RESERVED, Kind

FEW = 25  # up to this many distinct whole numbers are taken as codes, not amounts
FREE_TEXT = 60  # mean number of characters
CODES = {"id", "code", "zip", "zipcode", "postcode", "level", "type", "class", "category", "group", "segid"}
AGES = (0, 120)
HOURS = r"^\d{1,2}(:\d\d)? ?([AaPp]\.?[Mm]\.?|h)?$"


@dataclass(frozen=True)
class FieldGuess:
    """A column as a field, or the reason for leaving it out."""

    name: str
    column: str
    kind: Kind
    reason: str
    used: bool = True
    more: Mapping[str, object] = field(default_factory=dict)
    """Further keys of the field: separator, minimum, maximum."""


@dataclass(frozen=True)
class SideGuess:
    """A table of users or items: its key and fields."""

    table: Table
    key: str
    reason: str
    fields: Sequence[FieldGuess]


@dataclass(frozen=True)
class Guess:
    """Everything that a schema file states."""

    log: Table
    user: Found
    item: Found
    target: Found
    scale: tuple[float, float, float] | None
    """Lowest rating, highest rating and step; None for clicks, or if there is no target."""
    time: Found
    users: SideGuess | None
    items: SideGuess | None
    context: Sequence[FieldGuess]
    event: Found | None = None
    """For choices: the type of the event, if there is one."""
    amount: Found | None = None
    """For choices: what an event counts, if that is known."""

    @property
    def chosen(self) -> bool:
        """Whether every row is a choice: there is no target, and no column that should be one."""
        return self.target.column is None and self.target.reason == NO_TARGET

    @property
    def gaps(self) -> list[str]:
        """What was not found and must be completed by hand."""
        found = {"user": self.user, "item": self.item, **({} if self.chosen else {"target": self.target})}
        return [f"{role}: {entry.reason}" for role, entry in found.items() if entry.column is None]

    @property
    def doubts(self) -> list[str]:
        """What was chosen without a good reason, and should be checked."""
        time = [f"time: {self.time.reason}"] if self.time.doubtful else []
        if not self.target.doubtful:
            return time
        others = ", ".join(f"'{name}'" for name in self.target.others)
        chosen = f"'{self.target.column}' was taken as the target because it comes first"
        return [f"target: {chosen}; {others} would fit as well: name the right one", *time]


def guess(samples: Sequence[Sample], target_column: str | None = None) -> Guess:
    """One to three samples in any order: interactions, and perhaps users and items.

    `target_column` is what is to be predicted; without it, it is guessed, too.
    """
    log, links = connect([Table.of(sample) for sample in samples])
    side = sides(log, links)
    keys: dict[str, Found] = {name: _linked(link) for name, link in side.items()}
    for name in ("user", "item"):
        if name not in keys:
            taken = {entry.column for entry in keys.values() if entry.column}
            keys[name] = find_key(log, name, taken | {target_column or ""})
    user, item = keys["user"], keys["item"]
    taken = {entry.column for entry in (user, item) if entry.column}
    by_user = settled_by(log, user.column) - taken
    by_item = settled_by(log, item.column) - taken
    target = (
        find_target(log, taken, by_user | by_item) if target_column is None else named_target(log, target_column, taken)
    )
    taken |= {target.column} if target.column else set()
    time = find_time(log, taken, by_user | by_item)
    taken |= {time.column} if time.column else set()
    event = amount = None
    chosen = target.reason == NO_TARGET
    if chosen:
        event, amount = find_event(log, taken, by_user | by_item), find_amount(log, taken)
        taken |= {found.column for found in (event, amount) if found.column}
    rest = [column for name, column in log.columns.items() if name not in taken]
    profile = [c for c in rest if "user" not in side and c.name in by_user and not _constant(c)]
    content = [c for c in rest if "item" not in side and c.name in by_item and not _constant(c) and c not in profile]
    context = [c for c in rest if c not in profile and c not in content]
    log_keys = [log.columns[name] for name in (user.column, item.column) if name]
    users = _side(side.get("user"), "user") or _from_log(log, user.column, profile, "user")
    items = _side(side.get("item"), "item") or _from_log(log, item.column, content, "item", itself=not chosen)
    scale = log.columns[target.column].scale if target.column else None
    if target.column and log.columns[target.column].is_click:
        scale = None
    excluded = {name: "the other file has it as well" for link in side.values() for name in link.table.columns}
    excluded |= dict.fromkeys(time.others, "named like a time, but of no form that is read")
    if chosen:
        excluded |= {column.name: "a choice is made among all items, in no context" for column in context}
    fields = _fields(context, log_keys, "interaction", {**excluded, **_leaks(log, context, target)})
    return Guess(log, user, item, target, scale, time, users, items, fields, event, amount)


def _leaks(log: Table, context: Sequence[Column], target: Found) -> dict[str, str]:
    """Columns that would leak the target into the inputs, and why."""
    if target.column is None:
        return {}
    leaks = dict.fromkeys(target.others, "could also be the target")
    for column in context:
        if leaks_target(column, log.columns[target.column]):
            leaks[column.name] = f"leaks the target: its values determine or follow from those of '{target.column}'"
    return leaks


def _linked(link: Link) -> Found:
    return Found(link.column, f"its values occur in column '{link.key}' of {link.table.name}")


def _constant(column: Column) -> bool:
    return len(column.distinct) < 2


def _side(link: Link | None, side: str) -> SideGuess | None:
    """A separate table: all its columns except the key."""
    if link is None:
        return None
    columns = [column for name, column in link.table.columns.items() if name != link.key]
    reason = "unique, and the interactions refer to it"
    if link.missing and side == "item":
        reason += f"; {link.missing:,} items of the sample have no row here: add rows for them, blank if necessary"
    return SideGuess(link.table, link.key, reason, _fields(columns, [link.table.columns[link.key]], side))


def _from_log(
    log: Table, key: str | None, columns: Sequence[Column], side: str, *, itself: bool = False
) -> SideGuess | None:
    """Users or items of one wide table; with `itself`, the key of items without any field becomes a field."""
    if key is None:
        return None
    first = log.columns[key].values.is_first_distinct()
    fields = _fields([column.where(first) for column in columns], [log.columns[key].where(first)], side)
    if itself and not any(entry.used and entry.kind is not Kind.IDENTIFIER for entry in fields):
        name = field_name(key)
        name = (
            name
            if log.columns[key].is_whole and name.lower() not in RESERVED
            else f"{name.removesuffix('_value')}_type"
        )
        fields = [
            FieldGuess(name, key, Kind.CATEGORICAL, "items have no other field, so the item itself is one"),
            *fields,
        ]
    elif not fields:
        return None
    return SideGuess(log, key, f"from the interactions' file: these fields have one value per {side}", fields)


def _fields(
    columns: Iterable[Column], keys: Sequence[Column], side: str, excluded: Mapping[str, str] | None = None
) -> list[FieldGuess]:
    """Each column as a field, or left out; `excluded` maps columns to a reason known to the caller."""
    fields: list[FieldGuess] = []
    kept: list[Column] = []
    names: set[str] = set()
    for column in columns:
        name = field_name(column.name, column)
        while name in names:
            name += "_2"
        names.add(name)
        twin = next((other for other in kept if _same_information(column, other)), None)
        if reason := _why_not(column, keys, side, (excluded or {}).get(column.name), twin):
            fields.append(FieldGuess(name, column.name, Kind.CATEGORICAL, reason, used=False))
            continue
        kind, reason, more = kind_of_column(column)
        useless = kind is Kind.IDENTIFIER and side == "interaction"
        fields.append(FieldGuess(name, column.name, kind, reason, not useless, more))
        kept.append(column)
    return fields


def _same_information(column: Column, other: Column) -> bool:
    return 2 <= len(column.distinct) <= len(column.known) / 10 and one_to_one(column, other)


def _why_not(  # noqa: C901 - a list of reasons
    column: Column, keys: Sequence[Column], side: str, excluded: str | None, twin: Column | None
) -> str | None:
    """Why a column cannot or should not be a field; None if it can."""
    if not len(column.known):
        return "all values are blank"
    if column.blank_share > 0.5:
        return f"{column.blank_share:.0%} of the values are blank"
    if _constant(column):
        return f"all values are {_short(column.known[0])}"
    if column.stated == "float_seq":
        return "a list of numbers"
    if same_values(column, keys):
        return "repeats a key"
    if column.is_row_number:
        return "just numbers the rows"
    if excluded is not None:
        return excluded
    if twin is not None:
        return f"same information as '{twin.name}': each value goes with one of its values"
    if column.is_address:
        return "web addresses"
    if column.time and (column.numbers is None or column.stated == "time"):
        return f"{column.time}: a date is not an input; derive a year or a weekday from it"
    if column.has_decimal_commas and len(column.distinct) > FEW:
        return "decimal commas: write the numbers with a point"
    if (
        column.list_separator is None
        and column.mean_length > FREE_TEXT
        and len(column.distinct) > len(column.known) / 10
    ):
        return f"free text of {column.mean_length:.0f} characters on average"
    if side == "interaction" and column.numbers is None and column.list_separator is None and column.is_nearly_unique:
        return "nearly every value is different"
    return None


def kind_of_column(column: Column) -> tuple[Kind, str, dict[str, object]]:
    """Kind, reason and further keys of a column that is used."""
    count, words = f"{len(column.distinct):,}", set(column.tokens())
    if separator := column.list_separator:
        parts = column.distinct.str.split(separator).explode().n_unique()
        if separator == LIST_MARK:
            return Kind.MULTI, f"lists of {parts:,} values", {}
        more: dict[str, object] = {} if separator == "|" else {"separator": separator}
        return Kind.MULTI, f"{parts:,} values, joined by '{separator}' into lists", more
    if column.numbers is None or column.stated == "token":
        if column.dirt and column.stated != "token":
            return _kind_of_dirty_numbers(column)
        if column.is_nearly_unique and len(column.distinct) > 2:
            return Kind.IDENTIFIER, f"nearly every value is different ({_short(column.known[0])})", {}
        return Kind.CATEGORICAL, f"{count} values", {}
    low, high = float(column.numbers[0]), float(column.numbers[-1])
    span = f"{low:g} to {high:g}"
    if "age" in words and 5 <= float(column.numbers.median()) <= 110:  # type: ignore[arg-type]
        return _ages(column, low, high)
    if column.has_leading_zeros or (column.is_whole and words & CODES):
        if column.is_nearly_unique:
            return Kind.IDENTIFIER, "nearly every code is different", {}
        return Kind.CATEGORICAL, f"{count} codes", {}
    if len(column.distinct) <= (FEW if column.is_whole else 5) and len(column.distinct) <= max(
        len(column.known) / 3, 2
    ):
        return Kind.CATEGORICAL, f"{count} numbers, {span}: codes rather than amounts", {}
    return Kind.NUMERIC, f"{count} numbers, {span}", {}


def _ages(column: Column, low: float, high: float) -> tuple[Kind, str, dict[str, object]]:
    """Ages, limited only where some are impossible: who is too young for a study is not too young for your users."""
    if low >= AGES[0] and high <= AGES[1]:
        many = len(column.distinct) > 10
        return Kind.CATEGORICAL, f"ages from {low:g} to {high:g}" if many else f"{len(column.distinct)} age codes", {}
    reason = f"ages from {low:g} to {high:g}; values outside {AGES[0]} to {AGES[1]} are invalid"
    return Kind.CATEGORICAL, reason, {"minimum": AGES[0], "maximum": AGES[1]}


def _kind_of_dirty_numbers(column: Column) -> tuple[Kind, str, dict[str, object]]:
    """The kind of the numbers alone; whatever else occurs counts as not known."""
    dirt = column.dirt or []
    kind, reason, more = kind_of_column(column.without_dirt())
    shown = ", ".join(f"'{_short(text)}'" for text in dirt[:3]) + (", ..." if len(dirt) > 3 else "")
    if kind is Kind.NUMERIC:
        more = {**more, "lenient": True}
    elif kind is Kind.CATEGORICAL and column.cleaned is not None:  # a text is not within any limits
        more = {"minimum": float(column.cleaned[0]), "maximum": float(column.cleaned[-1]), **more}
    return kind, f"{reason}; {shown} count as not known", more


def field_name(column: str, values: Column | None = None) -> str:
    """A valid field name, as close to the column's name as possible."""
    plain = unicodedata.normalize("NFKD", column).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9_]+", "_", plain).strip("_") or "field"
    name = name if name[0].isalpha() else f"f_{name}"
    if name not in RESERVED:
        return name
    if name == "time" and values is not None and values.distinct.str.contains(HOURS).all():
        return "hour"
    return f"{name}_value"


def _short(text: str) -> str:
    return text if len(text) <= 30 else text[:27] + "..."


def missing_targets(log: Table, target: str | None) -> int:
    """Rows whose target is blank or not a number: a preparation counts them as bad lines."""
    if target is None:
        return 0
    values = log.columns[target].values
    return int((~values.cast(pl.Float64, strict=False).is_finite().fill_null(False)).sum())
