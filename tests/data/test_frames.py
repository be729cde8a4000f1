"""Tables in memory: the same data set as from files, whatever holds them, and clear errors for what cannot be read."""

import datetime as dt
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import paml
from paml.data.schema import Kind


@pytest.fixture(scope="module")
def tables() -> dict[str, pl.DataFrame]:
    rng = np.random.default_rng(0)
    rows = [
        (user, item, int(rng.integers(1, 6)), dt.datetime(2025, 1, 1) + dt.timedelta(minutes=int(rng.integers(9999))))
        for user in range(1, 61)
        for item in rng.choice(np.arange(1, 41), 12, replace=False).tolist()
    ]
    return {
        "interactions": pl.DataFrame(rows, ["user_id", "movie_id", "rating", "when"], orient="row"),
        "users": pl.DataFrame(
            {
                "user_id": np.arange(1, 61),
                "gender": rng.choice(["M", "F"], 60),
                "zip": rng.choice(["01234", "55117", "90210"], 60),
                "score": rng.normal(size=60).round(3),
            }
        ),
        "items": pl.DataFrame(
            {
                "movie_id": np.arange(1, 41),
                "title": [f"Film {k}" for k in range(40)],
                "genres": ["|".join(rng.choice(["drama", "comedy", "war"], 2, replace=False)) for _ in range(40)],
            }
        ),
    }


class OnlyArrow:
    """Nothing but the PyCapsule interface."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._frame.__arrow_c_stream__(requested_schema)


HOLDERS: dict[str, Callable[[pl.DataFrame], Any]] = {
    "polars": lambda frame: frame,
    "lazy": lambda frame: frame.lazy(),
    "pandas": lambda frame: frame.to_pandas(),
    "pandas objects": lambda frame: frame.to_pandas().astype(object),
    "arrow": lambda frame: frame.to_arrow(),
    "pycapsule": OnlyArrow,
}


@pytest.fixture(scope="module")
def from_csv(tables: dict[str, pl.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    folder = tmp_path_factory.mktemp("csv")
    for name, frame in tables.items():
        frame.write_csv(folder / f"{name}.csv")
    (folder / "schema.toml").write_text(paml.inspect(sorted(folder.glob("*.csv"))))
    return paml.prepare("tables", schema=folder / "schema.toml", out=folder / "data")


@pytest.mark.parametrize("holder", HOLDERS)
def test_the_same_data_set_as_from_csv_files(
    holder: str, tables: dict[str, pl.DataFrame], from_csv: paml.Dataset, tmp_path: Path, capsys: Any
) -> None:
    held = {name: HOLDERS[holder](frame) for name, frame in tables.items()}
    found = paml.prepare(**held, out=tmp_path / "data")
    assert found.fingerprint == from_csv.fingerprint
    assert 'zip = "categorical"' in capsys.readouterr().out  # the guess is shown, with its reasons


def test_other_content_has_another_fingerprint(
    tables: dict[str, pl.DataFrame], from_csv: paml.Dataset, tmp_path: Path
) -> None:
    mirrored = tables["interactions"].with_columns(rating=6 - pl.col("rating"))
    found = paml.prepare(**{**tables, "interactions": mirrored}, out=tmp_path / "data")
    assert found.fingerprint != from_csv.fingerprint


def test_fields_correct_the_guess(tables: dict[str, pl.DataFrame], tmp_path: Path) -> None:
    fields = {"zip": {"kind": "categorical", "prefix": 1}, "user.score": None, "genres": "categorical"}
    found = paml.prepare(**tables, fields=fields, out=tmp_path / "data").schema
    assert [(field.name, field.kind, field.prefix) for field in found.user] == [
        ("gender", Kind.CATEGORICAL, None),
        ("zip", Kind.CATEGORICAL, 1),
    ]
    assert {field.name: field.kind for field in found.item}["genres"] is Kind.CATEGORICAL


def test_a_schema_may_be_a_file_or_a_dictionary(
    tables: dict[str, pl.DataFrame], from_csv: paml.Dataset, tmp_path: Path, capsys: Any
) -> None:
    written = paml.prepare(**tables, schema=from_csv.path.parent / "schema.toml", out=tmp_path / "written")
    assert written.fingerprint == from_csv.fingerprint
    schema = {
        "target": {"kind": "rating", "low": 1, "high": 5},
        "interactions": {"user": "user_id", "item": "movie_id", "target": "rating"},
    }
    bare = paml.prepare(interactions=tables["interactions"], schema=schema, out=tmp_path / "bare")
    assert bare.schema.user == bare.schema.item == ()
    assert bare.manifest.interactions == 60 * 12
    assert not capsys.readouterr().out  # nothing was guessed


def test_partitioned_parquet_as_a_lazy_frame(
    tables: dict[str, pl.DataFrame], from_csv: paml.Dataset, tmp_path: Path
) -> None:
    """As Spark and DuckDB write it; the order of files does not matter for content that is sorted by keys."""
    log = tables["interactions"].with_columns(month=pl.lit("2025-01"))
    log.write_parquet(tmp_path / "events", partition_by="month", mkdir=True)
    lazy = pl.scan_parquet(tmp_path / "events", hive_partitioning=True).drop("month")
    found = paml.prepare(interactions=lazy, users=tables["users"], items=tables["items"], out=tmp_path / "data")
    assert found.fingerprint == from_csv.fingerprint


def test_a_sql_query_is_a_frame(tables: dict[str, pl.DataFrame], from_csv: paml.Dataset, tmp_path: Path) -> None:
    found: dict[str, pl.DataFrame] = {}
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as database:
        for name, frame in tables.items():
            frame = frame.with_columns(pl.col(pl.Datetime).dt.to_string("iso:strict"))  # SQLite has no dates
            database.execute(f"CREATE TABLE {name} ({', '.join(map(repr, frame.columns))})")
            database.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * frame.width)})", frame.rows())
            found[name] = pl.read_database(f"SELECT * FROM {name}", database)
    assert paml.prepare(**found, out=tmp_path / "data").fingerprint == from_csv.fingerprint


def mixed(frame: pl.DataFrame) -> pd.DataFrame:
    found = frame.to_pandas().astype({"user_id": object})
    found.loc[3, "user_id"] = "u3"
    return found


def zones(frame: pl.DataFrame) -> pd.DataFrame:
    found = frame.to_pandas()
    east = dt.timezone(dt.timedelta(hours=5))
    found["when"] = [one.replace(tzinfo=east if k % 2 else dt.UTC) for k, one in enumerate(frame["when"].to_list())]
    return found


def twice(frame: pl.DataFrame) -> pa.Table:
    table = frame.to_arrow()
    return table.append_column("rating", table["rating"])


BAD: dict[str, tuple[Callable[[pl.DataFrame], Any], str]] = {
    "a list": (lambda frame: frame.rows(), "interactions is of type list"),
    "a pandas series": (lambda frame: frame.to_pandas()["rating"], "interactions is a pandas Series"),
    "mixed types": (mixed, "interactions: column 'user_id' holds values of several types"),
    "mixed time zones": (zones, "interactions: column 'when' mixes time zones"),
    "a column twice": (twice, "interactions: has the column 'rating' twice"),
    "pandas, a column twice": (
        lambda frame: pd.concat([frame.to_pandas(), frame.to_pandas()["rating"]], axis=1),
        "interactions: has the column 'rating' twice",
    ),
    "Python objects": (
        lambda frame: frame.with_columns(what=pl.Series([object()] * len(frame), dtype=pl.Object)),
        "interactions: column 'what' holds Python objects",
    ),
    "a lazy frame that fails": (
        lambda frame: frame.lazy().select(pl.col("nothing")),
        "interactions: cannot be computed",
    ),
    "null ids": (
        lambda frame: frame.with_columns(
            pl.when(pl.col("rating") > 4).then(None).otherwise("user_id").alias("user_id")
        ),
        "interactions.parquet row 2: user_id is blank",
    ),
    "dates in the future": (
        lambda frame: frame.with_columns(when=pl.col("when").dt.offset_by("50y")),
        "interactions.parquet row 1: when is 2075-",
    ),
    "no scale": (
        lambda frame: frame.with_columns(rating=pl.Series(np.linspace(0, 1, len(frame)) ** 2)),
        "interactions: not found: target: 'rating' does not hold a few evenly spaced numbers",
    ),
    "no column of items": (lambda frame: frame.drop("movie_id"), "interactions: not found: item: no column looks like"),
    "no rows": (lambda frame: frame[:0], "interactions.parquet: has no rows"),
    "pandas, with and without a time zone": (
        lambda frame: frame.to_pandas().assign(
            when=[one.replace(tzinfo=dt.UTC) if k % 2 else one for k, one in enumerate(frame["when"].to_list())]
        ),
        "interactions: column 'when' mixes time zones (None, UTC)",
    ),
    "numbers that no table has": (
        lambda frame: frame.to_pandas().assign(what=np.full(len(frame), 1j)),
        "interactions: column 'what' cannot be read (",
    ),
    "no columns": (lambda frame: frame.select([]), "interactions: has no columns"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_frames_get_a_clear_error(case: str, tables: dict[str, pl.DataFrame], tmp_path: Path) -> None:
    spoil, message = BAD[case]
    with pytest.raises(paml.PamlError) as error:
        paml.prepare(interactions=spoil(tables["interactions"]), users=tables["users"], out=tmp_path / "data")
    assert str(error.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


SOME = pl.col("rating") > 4
EVENT = {"event": "what", "weights": {"view": 1, "buy": 5}}
BAD_EVENTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a column that is missing": ({}, {"weight": "price"}, "interactions.parquet: has no column 'price'; known: "),
    "a negative amount": ({"amount": -1.0}, {"weight": "amount"}, "interactions.parquet row 2: amount '-1.0' is not a"),
    "an infinite amount": (
        {"amount": float("inf")},
        {"weight": "amount"},
        "interactions.parquet row 2: amount 'inf' is",
    ),
    "an amount that is NaN": (
        {"amount": float("nan")},
        {"weight": "amount"},
        "interactions.parquet row 2: amount is blank",
    ),
    "a type without a weight": (
        {"what": "gift"},
        EVENT,
        "interactions.parquet: event 'gift', {} rows, has no weight; add",
    ),
    "no type": ({"what": None}, EVENT, "interactions.parquet row 2: what is blank"),
    "a negative weight": (
        {},
        {"event": "what", "weights": {"view": -1}},
        "schema: setting 'interactions.weights.view' is -1",
    ),
    "an infinite weight": (
        {},
        {"event": "what", "weights": {"view": float("inf")}},
        "schema: setting 'interactions.weights.view' is inf; expected a finite number",
    ),
    "a weight that is NaN": (
        {},
        {"event": "what", "weights": {"view": float("nan")}},
        "schema: setting 'interactions.weights.view' is nan; expected a finite number",
    ),
    "an item that is null": ({"movie_id": None}, {}, "interactions.parquet row 2: movie_id is blank"),
    "no time": ({"when": None}, {"time": "when"}, "interactions.parquet row 2: when is blank"),
    "text with and without an offset": (
        {"when": "2025-01-01T10:00:00+01:00"},
        {"time": "when"},
        "interactions.parquet row 2: when '2025-01-01T10:00:00+01:00' is not a date like",
    ),
    "text in the future": (
        {"when": "2099-01-01 00:00:00"},
        {"time": "when"},
        "interactions.parquet row 2: when is 2099-01-01",
    ),
}


@pytest.mark.parametrize("case", BAD_EVENTS)
def test_bad_events_get_a_clear_error(case: str, tables: dict[str, pl.DataFrame], tmp_path: Path) -> None:
    """Some rows are spoilt, the second one first; nothing is written."""
    values, keys, message = BAD_EVENTS[case]
    log = tables["interactions"].with_columns(
        pl.col("when").dt.to_string("%Y-%m-%d %H:%M:%S"), what=pl.lit("view"), amount=pl.lit(1.0)
    )
    log = log.with_columns(
        pl.when(SOME).then(pl.lit(value)).otherwise(name).alias(name) for name, value in values.items()
    )
    schema = {"target": {"kind": "choice"}, "interactions": {"user": "user_id", "item": "movie_id", **keys}}
    with pytest.raises(paml.PamlError) as error:
        paml.prepare(interactions=log, schema=schema, out=tmp_path / "data")
    assert str(error.value).startswith(message.format(log.filter(SOME).height))
    assert list(tmp_path.iterdir()) == []


def test_offsets_in_every_row_are_moments(tables: dict[str, pl.DataFrame], tmp_path: Path) -> None:
    zoned = pl.when(SOME).then(pl.lit("2025-01-01T10:00:00+01:00")).otherwise(pl.lit("2025-01-01T10:00:00+05:00"))
    log = tables["interactions"].with_columns(when=zoned)
    found = paml.prepare(interactions=log, users=tables["users"], out=tmp_path / "data").interactions().collect()
    nine, five = (dt.datetime(2025, 1, 1, hour, tzinfo=dt.UTC).timestamp() for hour in (9, 5))
    assert set(found.select("target", "time").unique().rows()) == {
        (1, five),
        (2, five),
        (3, five),
        (4, five),
        (5, nine),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "ml-1m"}, "the source 'ml-1m' and a table of interactions are given"),
        ({"path": "somewhere"}, "the path 'somewhere' and a table of interactions are given"),
        ({"fields": {"zap": "categorical"}}, "there is no field 'zap'"),
        ({"fields": {"user.zap": None}}, "there is no field 'user.zap'"),
        ({"fields": {"zip": "colour"}}, "kind"),
        ({"schema": {"target": {"kind": "click"}}}, "says nothing about users"),
    ],
)
def test_contradictory_arguments(
    arguments: dict[str, Any], message: str, tables: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    with pytest.raises(paml.PamlError, match=message.replace("(", r"\(")):
        paml.prepare(**{"out": tmp_path / "data", **tables, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_a_schema_that_names_a_missing_frame(
    tables: dict[str, pl.DataFrame], from_csv: paml.Dataset, tmp_path: Path
) -> None:
    schema = from_csv.path.parent / "schema.toml"
    with pytest.raises(paml.SettingsError, match="the schema describes users, but there is no such frame"):
        paml.prepare(interactions=tables["interactions"], schema=schema, out=tmp_path / "data")


def test_nothing_at_all() -> None:
    with pytest.raises(paml.SettingsError, match="no source and no interactions"):
        paml.prepare()


def test_keys_that_are_decimals_are_exact(tables: dict[str, pl.DataFrame], tmp_path: Path) -> None:
    """As databases export numbers of 64 bits: as floats, neighbours would be one user."""
    user = pl.col("user_id").cast(pl.Int64) * 7 + 1_145_141_919_810_000_000
    log = tables["interactions"].with_columns(user_id=user.cast(pl.Decimal(20, 0)))
    schema = {
        "target": {"kind": "rating", "low": 1, "high": 5},
        "interactions": {"user": "user_id", "item": "movie_id", "target": "rating"},
    }
    found = paml.prepare(interactions=log, schema=schema, out=tmp_path / "data", cold_share=1)
    assert set(found.users().collect()["user"]) == set(log["user_id"].cast(pl.String))
    halves = log.with_columns(pl.col("rating").cast(pl.Decimal(5, 2)), user_id="user_id")
    same = paml.prepare(interactions=halves, schema=schema, out=tmp_path / "halves", cold_share=1)
    assert same.fingerprint == found.fingerprint


def test_pandas_lists_and_missing_values(tables: dict[str, pl.DataFrame], tmp_path: Path) -> None:
    """Lists are arrays in frames that pandas has read from Parquet."""
    items = tables["items"].with_columns(pl.col("genres").str.split("|"))
    held = {**tables, "items": items}
    pandas = {name: frame.to_pandas() for name, frame in held.items()}
    assert isinstance(pandas["items"]["genres"][0], np.ndarray)
    zips = pandas["users"]["zip"].astype(object)
    pandas["users"]["zip"] = zips.where(zips != "90210", pd.NA)
    held["users"] = tables["users"].with_columns(pl.when(pl.col("zip") != "90210").then("zip"))
    found, expected = (paml.prepare(**one, out=tmp_path / name) for name, one in (("a", pandas), ("b", held)))
    assert found.fingerprint == expected.fingerprint
