"""Which table is the log and which describes users or items; which columns are keys, target and time.

Content decides: a table of users has a column of unique values that contains the values of a column of the log.
Names of columns and files break ties, and choose among columns whose contents fit equally well.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import permutations, product

import polars as pl

from paml.data.infer.columns import Column, tokens
from paml.data.infer.sample import Sample
from paml.data.readers.delimited import whole_keys
from paml.errors import DataError, nearest


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHORT = {"id", "ids", "key", "no", "nr", "num", "index", "idx"}
USER = _words(
    "user users uid userid customer customers client member members person people reader viewer listener visitor "
    "account reviewer buyer shopper subject student patient profile profiles"
)
ITEM = _words(
    "item items iid itemid movie movies movieid mid film films book books isbn product products productid sku asin "
    "article articles song songs track tracks artist artists album video videos news game games recipe recipes beer "
    "beers anime joke jokes course courses app apps ad ads adgroup coupon coupons offer offers restaurant restaurants "
    "business hotel hotels poi venue place listing show shows content contents"
)
LOG = _words("rating ratings interaction interactions inter log logs event events click clicks review reviews")
TARGET = _words(
    "rating ratings rate stars star score scores grade target label y click clicks clicked clk like liked likes "
    "purchase purchased bought accepted response reward preference overall"
)
EVENT = _words("event events eventtype action actions behavior behaviour activity type interaction")
ACTS = _words(
    "view views viewed pv pageview click clicked cart addtocart fav favorite favourite buy bought purchase purchased "
    "order ordered play played watch watched listen listened stream like liked save saved share shared download "
    "install impression transaction rent borrow read visit wishlist basket checkout add"
)
AMOUNT = _words("quantity qty count counts plays playcount units amount times weight weights minutes seconds duration")
YES_OR_NO = ({"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"})
FEW_TIMES = 25  # so many different values may be times of day, or days of the week
TIME = _words("time timestamp timestamps ts date datetime when at unix created rated day")
OF_PEOPLE = _words("age gender sex occupation job zip zipcode income marital education birth country city")
OF_THINGS = _words("title titles genre genres price author authors publisher brand category director year actors")


MAX_EVENTS = 20
NO_TARGET = "no column with ratings or clicks"
"""Then every row is a choice."""


@dataclass(frozen=True)
class Table:
    """A sample whose blank markers are known."""

    sample: Sample
    columns: Mapping[str, Column]
    blanks: Mapping[str, str]
    """Values that mean "not known", each with a column that contains it."""

    @classmethod
    def of(cls, sample: Sample) -> "Table":
        """Find the blank markers, and replace them by null in every column."""
        blanks: dict[str, str] = {}
        for name in sample.frame.columns:
            for token in Column(name, sample.frame[name]).blanks():
                blanks.setdefault(token, name)
        frame = sample.frame
        if blanks:
            frame = frame.with_columns(pl.when(~pl.all().is_in(list(blanks))).then(pl.all()).name.keep())
        return cls(sample, {name: Column(name, frame[name], sample.types.get(name)) for name in frame.columns}, blanks)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.sample.path.name

    def score(self, words: Collection[str]) -> float:
        """How strongly the file's name suggests a role."""
        return name_score(self.sample.path.stem.replace(".", " ") + " " + self.sample.path.suffix[1:], words)

    def column_score(self, name: str, words: Collection[str]) -> float:
        """How strongly a column's name suggests a role; 0 if the file does not name its columns."""
        return name_score(name, words) if self.sample.named else 0.0


@dataclass(frozen=True)
class Link:
    """A column of the log whose values are keys of another table."""

    column: str
    table: Table
    key: str
    score: float
    missing: int
    """Values of the column, in the samples, that are not keys of the table."""


@dataclass(frozen=True)
class Found:
    """The column found for a role, or None, and the reason."""

    column: str | None
    reason: str
    others: Sequence[str] = ()
    """Other columns that could have the role."""
    doubtful: bool = False
    """Whether nothing but its place speaks for the column, and not for the others."""


def name_score(name: str, words: Collection[str]) -> float:
    """1 if a name consists of these words (besides `id` and the like), 0.5 if it contains one of them."""
    parts = [part for part in tokens(name) if part not in SHORT]
    hits = [part in words or part.removesuffix("id") in words for part in parts]
    return 0.0 if not any(hits) else 1.0 if all(hits) else 0.5


def connect(tables: Sequence[Table]) -> tuple[Table, list[Link]]:
    """The log, and how the other tables are linked to it."""
    if len(tables) == 1:
        return tables[0], []
    best: tuple[float, Table, list[Link]] | None = None
    for log in tables:
        others = [table for table in tables if table is not log]
        options = [_links(log, other) for other in others]
        for chosen in product(*options):
            if len({link.column for link in chosen}) < len(chosen):
                continue
            score = sum(link.score for link in chosen) + 0.5 * log.score(LOG)
            if best is None or score > best[0]:
                best = score, log, list(chosen)
    if best is None:
        names = " and ".join(table.name for table in tables)
        remedy = "the users' or items' file needs a column of unique values that the interactions refer to"
        raise DataError(f"nothing connects {names}", remedy=remedy)
    return best[1], best[2]


def _links(log: Table, other: Table) -> list[Link]:
    """Every way in which a column of the log can refer to a key of the other table."""
    found = []
    for key in other.columns.values():
        if not key.is_unique or key.time or (key.numbers is not None and not key.is_whole):
            continue
        for column in log.columns.values():
            if not column.repeats or not len(column.distinct):
                continue
            matched = int(whole_keys(column.distinct).is_in(whole_keys(key.distinct).implode()).sum())
            covered, used = matched / len(column.distinct), matched / len(key.distinct)
            named = log.sample.named and other.sample.named
            same = named and tokens(column.name) == tokens(key.name)
            if covered < (0.05 if other.sample.partial and same else 0.5):
                continue
            score = covered + 0.5 * used + 0.5 * same
            found.append(Link(column.name, other, key.name, score, len(column.distinct) - matched))
    return found


def sides(log: Table, links: Sequence[Link]) -> dict[str, Link]:
    """Which link leads to the users (`user`), and which to the items (`item`)."""
    order = list(log.columns)
    best: tuple[float, dict[str, Link]] | None = None
    for names in permutations(("user", "item"), len(links)):
        chosen = dict(zip(names, links, strict=True))
        score = sum(_side_score(log, link, side) for side, link in chosen.items())
        if len(links) == 2:
            score += 0.1 * (order.index(chosen["user"].column) < order.index(chosen["item"].column))
        elif links:
            score += 0.1 * ((order.index(links[0].column) == 0) == (names[0] == "user"))
        if best is None or score > best[0]:
            best = score, chosen
    return best[1] if best else {}


def _side_score(log: Table, link: Link, side: str) -> float:
    words, other, content = (USER, ITEM, OF_PEOPLE) if side == "user" else (ITEM, USER, OF_THINGS)
    score = link.table.score(words) - link.table.score(other)
    for table, column in ((log, link.column), (link.table, link.key)):
        score += table.column_score(column, words) - table.column_score(column, other)
    return score + 0.5 * any(link.table.column_score(name, content) for name in link.table.columns)


def find_key(log: Table, side: str, taken: Collection[str]) -> Found:
    """The user or item key of a log: by name, otherwise the column with the most recurring values."""
    words = USER if side == "user" else ITEM
    fit = [c for c in log.columns.values() if c.name not in taken and _can_be_key(c)]
    scored = [(log.column_score(c.name, words), "id" in c.tokens(), len(c.distinct), c) for c in fit]
    named = [entry for entry in scored if entry[0] == 1.0] or [entry for entry in scored if entry[0] and entry[1]]
    if named:
        column = max(named, key=lambda entry: entry[:3])[3]
        return Found(column.name, f"{len(column.distinct):,} recurring values, and its name fits")
    enough = max(3.0, len(log.sample.frame) / 400)
    other = ITEM if side == "user" else USER
    rest = [
        c for c in fit if len(c.distinct) >= enough and not log.column_score(c.name, TARGET | other) and not c.is_click
    ]
    if not rest:
        return Found(None, f"no column looks like {side}s: name one")
    most = sorted(rest, key=lambda c: -len(c.distinct))[: 2 if side == "user" and not taken else 1]
    column = min(most, key=lambda c: list(log.columns).index(c.name))  # the user usually comes first
    return Found(column.name, f"{len(column.distinct):,} recurring values; its name says nothing, so check it")


def _can_be_key(column: Column) -> bool:
    whole = column.numbers is None or column.is_whole
    single = column.list_separator is None and column.mean_length <= 60
    return (
        len(column.distinct) > 1
        and column.repeats
        and column.blank_share < 0.01
        and whole
        and single
        and not column.time
    )


def _says_yes_or_no(column: Column) -> bool:
    """Whether a column has two values, and they are words for yes and no."""
    return {str(one).strip().lower() for one in column.distinct} in YES_OR_NO


def _example(column: Column) -> str:
    return repr(str(column.known[0])[:30])


def find_time(log: Table, taken: Set[str], settled: Set[str]) -> Found:
    """The time of an interaction; `settled` columns, with one value per user or item, are not its time."""
    scored: list[tuple[float, int, Column, str]] = []
    for column in log.columns.values():
        if column.name in taken or column.blank_share:
            continue
        named = log.column_score(column.name, TIME)
        reason = column.time
        grows = column.numbers is not None and column.numbers[-1] > 366  # not an hour, minute or day
        if reason is None and named == 1.0 and grows:
            reason = "a number, and its name fits"
        if reason is not None and (column.name not in settled or named):
            scored.append((named - (column.name in settled), -len(scored), column, reason))
    if not scored:
        unread = [
            column.name
            for column in log.columns.values()
            if column.name not in taken | settled
            and column.numbers is None
            and len(column.distinct) > FEW_TIMES
            and log.column_score(column.name, TIME) == 1.0
        ]
        if unread:
            what = f"'{unread[0]}' is named like a time, but its values, such as {_example(log.columns[unread[0]])}"
            return Found(None, f"{what}, have no form that is read; 2021-03-05 10:00:00 has one", unread, doubtful=True)
        return Found(None, "no column with times found")
    _, _, column, reason = max(scored, key=lambda entry: entry[:2])
    return Found(column.name, reason)


def find_event(log: Table, taken: Collection[str], settled: Collection[str]) -> Found:
    """The type of an event, in a log without a target: a few words, by its name or because they say what people do.

    `settled` columns, with one value per user or item, describe these.
    """
    for column in log.columns.values():
        few = 1 <= len(column.distinct) <= MAX_EVENTS and len(column.distinct) < len(column.known)
        if (
            column.name in taken
            or column.name in settled
            or column.blank_share
            or column.numbers is not None
            or not few
            or column.time
        ):
            continue
        acts = sum(bool(set(tokens(value)) & ACTS) for value in column.distinct) > len(column.distinct) / 2
        if acts or (log.column_score(column.name, EVENT) == 1.0 and column.list_separator is None):
            return Found(column.name, f"{len(column.distinct)} types of events")
    return Found(None, "no column with a type of event found")


def find_amount(log: Table, taken: Collection[str]) -> Found:
    """How much an event counts, in a log without a target: numbers of 0 or more whose name says so."""
    for column in log.columns.values():
        numbers = column.numbers
        if column.name in taken or column.blank_share or numbers is None or float(numbers[0]) < 0:
            continue
        if log.column_score(column.name, AMOUNT) == 1.0 and len(column.distinct) > 1:
            return Found(
                column.name, f"numbers from {float(numbers[0]):g} to {float(numbers[-1]):g}, and its name fits"
            )
    return Found(None, "no column with amounts found")


def find_target(log: Table, taken: Collection[str], settled: Collection[str]) -> Found:
    """What is predicted: 0 and 1, or a few evenly spaced numbers that vary within the rows of a user or item."""
    scored: list[tuple[float, int, Column]] = []
    commas: list[str] = []
    named_only: list[str] = []
    spoken: list[str] = []
    for place, column in enumerate(log.columns.values()):
        if column.name in taken or column.blank_share > 0.5:
            continue
        named = log.column_score(column.name, TARGET)
        if column.scale is None:
            commas += [column.name] if column.has_decimal_commas and named else []
            spoken += [column.name] if named and _says_yes_or_no(column) else []
            varies = len(column.distinct) > 1 and column.name not in settled
            named_only += [column.name] if named == 1.0 and varies else []
            continue
        is_time = column.time is not None or log.column_score(column.name, TIME) == 1.0
        if log.column_score(column.name, AMOUNT) == 1.0 or (is_time and not named):
            continue
        few = len(column.distinct) <= 11
        score = 4 * named + few - 3 * (column.name in settled)
        if score > 0:
            scored.append((score, -place, column))
    if not scored:
        if commas:
            return Found(None, f"'{commas[0]}' has decimal commas: write its numbers with a point, and name it")
        if spoken:
            return Found(None, f"'{spoken[0]}' says yes or no in words: write 1 and 0, and name it")
        if named_only:
            return Found(
                None, f"'{named_only[0]}' does not hold a few evenly spaced numbers: name another, or round it"
            )
        return Found(None, NO_TARGET)
    best, _, chosen = max(scored, key=lambda entry: entry[:2])
    others = [column.name for score, _, column in scored if column is not chosen and score > best - 3]
    by_name = ", and its name fits" if log.column_score(chosen.name, TARGET) else ""
    also = f"; it could also be {', '.join(others)}" if others else ""
    equal = [column.name for score, _, column in scored if column is not chosen and score == best]
    return Found(chosen.name, f"{_levels(chosen)}{by_name}{also}", others, doubtful=bool(equal))


def named_target(log: Table, name: str, keys: Collection[str]) -> Found:
    """The target that somebody has named; it must be a column of the interactions with values on a scale."""
    if name not in log.columns:
        raise DataError(f"has no column '{name}'", where=log.name, remedy=nearest(name, log.columns), argument="target")
    column = log.columns[name]
    if name in keys or column.scale is None:
        why = "it is a key of users or items" if name in keys else "its values are not a few evenly spaced numbers"
        what = f"'{name}' cannot be the target: {why}"
        raise DataError(what, where=log.name, remedy="name another column", argument="target")
    others = [other.name for other in log.columns.values() if other is not column and other.is_click]
    return Found(name, f"{_levels(column)}, and you named it", others if column.is_click else ())


def _levels(column: Column) -> str:
    return "0 and 1" if column.is_click else f"{len(column.distinct)} evenly spaced numbers"


def settled_by(log: Table, key: str | None) -> set[str]:
    """Columns with one value per value of the key: they describe the user or item, not the interaction."""
    if key is None:
        return set()
    names = [name for name in log.columns if name != key]
    frame = pl.DataFrame({str(k): log.columns[name].values for k, name in enumerate([key, *names])})
    groups = frame.group_by("0").agg(pl.len().alias("n"), pl.all().exclude("0").drop_nulls().n_unique() <= 1)
    groups = groups.filter(pl.col("n") > 1)
    if len(groups) < 2:
        return set()
    return {name for k, name in enumerate(names, start=1) if float(groups[str(k)].mean()) >= 0.99}  # type: ignore[arg-type]
