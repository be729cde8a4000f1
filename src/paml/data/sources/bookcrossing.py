"""Book-Crossing (Ziegler et al., WWW 2005): explicit ratings 1 to 10; a rating of 0 is implicit and left out.

In the reading `log`, implicit ratings do count as log data for ranking users: that comes closest to the paper's number
of users; in the reading `paper`, only explicit ratings exist.
Two forms are read: the original dump (`BX-*.csv`: latin-1, `;`, backslash escapes) and the later one in UTF-8
(`Ratings.csv`, `Users.csv`, `Books.csv`). A location is "city, state, country"; a state or country with
other characters than letters and punctuation is garbled, hence invalid (paper, Sec. D.1).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import polars as pl

from paml.data.readers.delimited import Column
from paml.data.readers.reader import TableReader
from paml.data.readers.text import Dialect
from paml.data.schema import Field, Kind, Schema, Target
from paml.data.sources.base import LoadRequest, RawData
from paml.data.sources.download import Archive
from paml.settings import Settings, added

ARCHIVE = Archive(
    "BX-CSV-Dump.zip",
    "http://www2.informatik.uni-freiburg.de/~cziegler/BX/BX-CSV-Dump.zip",
    26_085_508,
    "37d647ee9e18ba134ea6d78ee4fe5292",
    "http://www2.informatik.uni-freiburg.de/~cziegler/BX/",
)
TEXT = pl.String()
YEARS = (1800, 2005)  # the dump dates from 2004; other years are 0 or typos
WORDS = r"[\p{L}][\p{L}\p{M} .,'`´’()/&-]*"

NAMES = {"Book-Ratings": "Ratings", "Users": "Users", "Books": "Books"}
COLUMNS = {
    "interactions": {
        "user": Column("User-ID", TEXT, required=True),
        "item": Column("ISBN", TEXT, required=True),
        "target": Column("Book-Rating", pl.Float64(), required=True, low=0, high=10, step=1),
    },
    "user": {
        "user": Column("User-ID", TEXT, required=True),
        "location": Column("Location", TEXT),
        "age": Column("Age", pl.Float64()),
    },
    "item": {
        "item": Column("ISBN", TEXT, required=True),
        "title": Column("Book-Title", TEXT),
        "author": Column("Book-Author", TEXT),
        "year": Column("Year-Of-Publication", TEXT),
        "publisher": Column("Publisher", TEXT),
    },
}


class BookCrossingSettings(Settings):
    """Which of the possible readings of the paper's rules is used."""

    reading: Literal["log", "paper"] = added(
        "log", "log: users by the letter of the rules; paper: the reading nearest to the paper's numbers (docs/data.md)"
    )


NEAREST = {"cold_rule": "last", "min_interactions": 5, "support_rounding": "down"}
"""Protocol of the reading `paper`, which also ranks users by explicit ratings only (benchmarks/readings.py)."""


def protocol(settings: Settings) -> Mapping[str, Any]:
    """Settings of the protocol that a reading has, where nothing else is asked for."""
    assert isinstance(settings, BookCrossingSettings)
    return NEAREST if settings.reading == "paper" else {}


def load(request: LoadRequest) -> RawData:
    """Ratings, users with state, country and age, and every rated book with year, publisher and author."""
    reader, ratings, users, books = read_tables(request)
    explicit = ratings.filter(pl.col("target") > 0)
    rated = explicit.select("item").unique()
    implicit, missing = (
        frame.select(pl.len()).collect().item()
        for frame in (ratings.filter(pl.col("target") == 0), rated.join(books, on="item", how="anti"))
    )
    notes = (
        f"{implicit:,} implicit ratings (0) left out",
        f"{missing:,} rated books have no description: their year, publisher and author are unknown",
    )
    items = rated.sort("item").join(books, on="item", how="left", maintain_order="left")
    assert isinstance(request.settings, BookCrossingSettings)
    if request.settings.reading == "log":
        users = _with_log(users, ratings)
    return reader.raw(_schema(), explicit, users, items, notes=notes)


def read_tables(request: LoadRequest) -> tuple[TableReader, pl.LazyFrame, pl.LazyFrame, pl.LazyFrame]:
    """The reader, ratings (implicit ones, 0, included), users with state, country and age, and books."""
    reader = TableReader(request)
    folder = reader.folder()
    files = [folder.first_of(f"BX-{old}.csv", f"{new}.csv") for old, new in NAMES.items()]
    ratings, users, books = (
        reader.read(role, file, columns, _dialect(file))
        for (role, columns), file in zip(COLUMNS.items(), files, strict=True)
    )
    return reader, ratings, _users(users), _books(books)


def _dialect(path: Path) -> Dialect:
    """The original dump or the later form, by the file's name; the later form exists with either separator."""
    if path.name.startswith("BX-"):
        return Dialect(";", '"', "latin-1", escape="\\", blanks=("NULL",), trim=False)
    with path.open("rb") as file:
        separator = ";" if b";" in file.readline(1 << 16) else ","
    return Dialect(separator, blanks=("NULL",), trim=False)


def _users(users: pl.LazyFrame) -> pl.LazyFrame:
    """State and country are the last two parts of the location; "n/a" is the state of countries that have none."""
    parts = pl.col("location").str.split(",").list.eval(pl.element().str.strip_chars(' "'))
    known = {side: parts.list.get(place, null_on_oob=True) for side, place in (("state", -2), ("country", -1))}
    return users.with_columns(
        pl.col("age").cast(pl.Int64, strict=False).cast(pl.String),
        **{side: pl.when(value != "").then(value) for side, value in known.items()},
    )


def _with_log(users: pl.LazyFrame, ratings: pl.LazyFrame) -> pl.LazyFrame:
    """How many ratings a user has, implicit ones included."""
    log = ratings.group_by("user").agg(_log=pl.len().cast(pl.Int64))
    return users.join(log, on="user", how="left", maintain_order="left").with_columns(pl.col("_log").fill_null(0))


def _books(books: pl.LazyFrame) -> pl.LazyFrame:
    """Names without HTML entities, and only plausible years."""
    year = pl.col("year").cast(pl.Int64, strict=False)
    names = pl.col("title", "author", "publisher").str.replace_all("&amp;", "&", literal=True)
    return books.with_columns(names, year=pl.when(year.is_between(*YEARS)).then(year).cast(pl.String)).drop("_line")


def _schema() -> Schema:
    user = (
        Field(name="state", kind=Kind.CATEGORICAL, pattern=WORDS),
        Field(name="country", kind=Kind.CATEGORICAL, pattern=WORDS),
        Field(name="age", kind=Kind.CATEGORICAL, minimum=10, maximum=100),
    )
    names = ("year", "publisher", "author")
    content = (Field(name=name, kind=Kind.CATEGORICAL) for name in names)
    title = Field(name="title", kind=Kind.IDENTIFIER)
    return Schema(user=user, item=(title, *content), target=Target(kind="rating", low=1, high=10))
