"""MovieLens: `ml-1m` and `ml-100k` with user profiles, and the later releases (`ratings.csv`, `movies.csv`) without.

Directors and actors are not part of MovieLens: `movies_extrainfos.dat`, published with MeLU (Lee et al., KDD 2019), has
them for ml-1m and is given as `extra`.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl
from pydantic import Field as Described

from paml.data.readers.delimited import Column
from paml.data.readers.inputs import file_called
from paml.data.readers.reader import TableReader
from paml.data.readers.text import Dialect
from paml.data.schema import Field, Kind, Schema, Target
from paml.data.sources.base import LoadRequest, RawData
from paml.data.sources.download import Archive
from paml.settings import Settings

TEXT, LIST, NUMBER = pl.String(), pl.List(pl.String()), pl.Float64()
RATING_NAMES = ("user", "item", "rating", "time")
PROFILE = ("gender", "age", "occupation", "zip")
EXTRA_PAGE = "https://github.com/hoyeoplee/MeLU"
EXTRA_COLUMNS = (
    "item",
    "title",
    "year",
    "rated",
    "released",
    "genre",
    "director",
    "writer",
    "actors",
    "plot",
    "poster",
)
NO_EXTRA = f"no directors and actors: movies_extrainfos.dat, published at {EXTRA_PAGE}, has them: give it as `extra`"
GENRES_100K = (
    *("Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy"),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
GENRE = Field(name="genre", kind=Kind.MULTI)
YEAR = Field(name="year", kind=Kind.CATEGORICAL)


class ProfileSettings(Settings):
    """Settings of the releases with user profiles."""

    zip_prefix: int = Described(
        0, ge=0, description="leading characters of the zip code to use as input (3: region); 0: all"
    )


class ReleaseSettings(Settings):
    """The later releases have no settings."""


def archive(name: str, size: int, md5: str) -> Archive:
    """An official GroupLens archive."""
    page = f"https://grouplens.org/datasets/movielens/{name.removeprefix('ml-')}/"
    return Archive(f"{name}.zip", f"https://files.grouplens.org/datasets/movielens/{name}.zip", size, md5, page)


def load_1m(request: LoadRequest) -> RawData:
    """ml-1m: `ratings.dat`, `users.dat` and `movies.dat`, separated by `::`."""
    reader = TableReader(request)
    folder = reader.folder()
    ratings = reader.read("interactions", folder.file("ratings.dat"), _rating_columns(1, 1), _dat(*RATING_NAMES))
    user_columns = {"user": _key("user"), **{name: Column(name, TEXT) for name in PROFILE}}
    users = reader.read("user", folder.file("users.dat"), user_columns, _dat(*user_columns))
    item_columns = {"item": _key("item"), "title": Column("title", TEXT), "genre": Column("genre", LIST)}
    items = _with_year(reader.read("item", folder.file("movies.dat"), item_columns, _dat(*item_columns)))
    fields, notes = [GENRE, YEAR], [NO_EXTRA]
    if request.extra is not None:
        notes = []
        names = ("director", "actors")
        columns = {"item": _key("item"), **{name: Column(name, LIST, list_separator=",") for name in names}}
        dialect = Dialect("::", None, header=EXTRA_COLUMNS, blanks=("N/A",))
        path = file_called(request.extra, "movies_extrainfos.dat", request.workdir)
        remark = pl.element().str.replace(r"\s*\(.*\)$", "")  # "Andrew Stanton(co-director)"
        extra = reader.read("extra", path, columns, dialect).with_columns(pl.col(names).list.eval(remark)).drop("_line")
        items = items.join(extra, on="item", how="left", maintain_order="left")
        fields[1:1] = [Field(name=name, kind=Kind.MULTI) for name in names]
    return reader.raw(_schema(_profile(request), fields, 1, 1), ratings, users, items, notes=tuple(notes))


def load_100k(request: LoadRequest) -> RawData:
    """ml-100k: `u.data` separated by tabs, `u.user` and `u.item` by `|`, genres as 19 flags."""
    reader = TableReader(request)
    folder = reader.folder()
    dialect = Dialect("\t", None, header=RATING_NAMES)
    ratings = reader.read("interactions", folder.file("u.data"), _rating_columns(1, 1), dialect)
    header = ("user", "age", "gender", "occupation", "zip")
    user_columns = {"user": _key("user"), **{name: Column(name, TEXT) for name in header[1:]}}
    users = reader.read("user", folder.file("u.user"), user_columns, Dialect("|", None, header=header))
    item_columns = {"item": _key("item"), **{name: Column(name, TEXT) for name in ("title", *GENRES_100K)}}
    item_header = ("item", "title", "released", "video", "page", "unknown", *GENRES_100K)
    dialect = Dialect("|", None, "latin-1", header=item_header)
    movies = reader.read("item", folder.file("u.item"), item_columns, dialect)
    flagged = [pl.when(pl.col(name) == "1").then(pl.lit(name)) for name in GENRES_100K]
    items = _with_year(movies.with_columns(genre=pl.concat_list(flagged).list.drop_nulls()).drop(GENRES_100K))
    profile = _profile(request, age={"minimum": 10, "maximum": 100})
    return reader.raw(_schema(profile, [GENRE, YEAR], 1, 1), ratings, users, items)


def load_release(request: LoadRequest) -> RawData:
    """The later releases: `ratings.csv` and `movies.csv`, ratings in half steps, no profiles."""
    reader = TableReader(request)
    folder = reader.folder()
    names = ("userId", "movieId", "rating", "timestamp")
    ratings = reader.read("interactions", folder.file("ratings.csv"), _rating_columns(0.5, 0.5, names), Dialect())
    item_columns = {"item": _key("movieId"), "title": Column("title", TEXT), "genre": Column("genres", LIST)}
    dialect = Dialect(blanks=("(no genres listed)",))
    items = _with_year(reader.read("item", folder.file("movies.csv"), item_columns, dialect))
    users = ratings.select("user").unique().sort("user")
    note = (
        "no user profiles: the learning rate alpha(h) is then the same for all users, and only their ratings "
        "distinguish them"
    )
    return reader.raw(_schema((), [GENRE, YEAR], 0.5, 0.5), ratings, users, items, notes=(note,))


def _rating_columns(low: float, step: float, names: Sequence[str] = RATING_NAMES) -> dict[str, Column]:
    user, item, rating, time = names
    return {
        "user": _key(user),
        "item": _key(item),
        "target": Column(rating, NUMBER, required=True, low=low, high=5, step=step),
        "time": Column(time, pl.Int64(), required=True),
    }


def _key(name: str) -> Column:
    return Column(name, TEXT, required=True)


def _dat(*header: str) -> Dialect:
    return Dialect("::", None, "latin-1", header=header)


def _with_year(movies: pl.LazyFrame) -> pl.LazyFrame:
    """Add the year, which ends the title: `Toy Story (1995)`."""
    return movies.with_columns(year=pl.col("title").str.extract(r"\((\d{4})\)\s*$"))


def _profile(request: LoadRequest, **limits: dict[str, Any]) -> tuple[Field, ...]:
    assert isinstance(request.settings, ProfileSettings)
    more: dict[str, dict[str, Any]] = {"zip": {"prefix": request.settings.zip_prefix or None}, **limits}
    return tuple(Field(name=name, kind=Kind.CATEGORICAL, **more.get(name, {})) for name in PROFILE)


def _schema(profile: tuple[Field, ...], content: list[Field], low: float, step: float) -> Schema:
    title = Field(name="title", kind=Kind.IDENTIFIER)
    target = Target(kind="rating", low=low, high=5, step=step)
    return Schema(user=profile, item=(title, *content), target=target)
