"""Users split by time: who is new on which date, what is known about everybody, and that no future leaks."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import paml

START = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
FIELDS = {
    "target": {"kind": "rating", "low": 1, "high": 5},
    "interactions": {"user": "user", "item": "item", "target": "rating", "time": "time"},
    "users": {"key": "user", "fields": {"city": "categorical"}},
    "items": {"key": "item", "fields": {"genre": "categorical", "liked": {"kind": "numeric", "derived": "rate"}}},
}


def days(count: float) -> dt.datetime:
    return START + dt.timedelta(days=count)


@pytest.fixture
def log() -> pl.DataFrame:
    """User u comes on day u and rates an item a day for 20 days: item (u + k) % 30 on day u + k."""
    rows = [(f"u{u}", f"i{(u + k) % 30}", 1 + (u * k) % 5, days(u + k)) for u in range(100) for k in range(20)]
    return pl.DataFrame(rows, ["user", "item", "rating", "time"], orient="row")


def tables() -> dict[str, pl.DataFrame]:
    return {
        "users": pl.DataFrame({"user": [f"u{u}" for u in range(100)], "city": [f"c{u // 10}" for u in range(100)]}),
        "items": pl.DataFrame({"item": [f"i{i}" for i in range(30)], "genre": [f"g{i % 4}" for i in range(30)]}),
    }


def prepared(log: pl.DataFrame, out: Path, **settings: Any) -> paml.Dataset:
    usual = {"split": "time", "active_users": "drop", "cold_share": 1, "min_interactions": 2}
    return paml.prepare(interactions=log, **tables(), schema=FIELDS, out=out, settings={**usual, **settings})


def users_of(data: paml.Dataset, split: str) -> list[str]:
    return data.users().filter(pl.col("split") == split).collect()["user"].to_list()


def test_who_appears_later_is_new(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data", validation_from="2025-03-02", test_from=f"{days(80).timestamp()}")
    found = {split: users_of(data, split) for split in ("train", "validation", "test")}
    # users 59 and 79 have one row before the next date, which is not enough for a support and a query row
    assert sorted(found["validation"]) == sorted(f"u{u}" for u in range(60, 79))
    assert sorted(found["test"]) == sorted(f"u{u}" for u in range(80, 100))
    assert sorted(found["train"]) == sorted(f"u{u}" for u in range(59))
    rows = (
        data.interactions()
        .collect()
        .join(data.users().select("split").with_row_index("user").collect().with_columns(pl.col("user")), on="user")
    )
    last = {split: part["time"].max() for (split,), part in rows.group_by("split")}
    assert last["train"] < days(60).timestamp()
    assert last["validation"] < days(80).timestamp()
    assert last["test"] == days(118).timestamp()
    assert data.manifest.protocol.support_by == "time"
    assert any("validation users appear from 2025-03-02" in note for note in data.manifest.notes)


def test_dates_follow_from_the_ratio(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data", user_ratio="6:2:2")
    assert [len(users_of(data, split)) for split in ("train", "validation", "test")] == [59, 19, 20]
    assert data.manifest.protocol.test_from == "2025-03-22T00:00:00+00:00"
    again = prepared(
        log, tmp_path / "again", validation_from=data.manifest.protocol.validation_from, test_from="2025-03-22"
    )
    assert np.array_equal(again.array("item"), data.array("item"))


def test_earlier_rows_are_the_support_set(log: pl.DataFrame, tmp_path: Path) -> None:
    share = prepared(log, tmp_path / "share")
    first = prepared(log, tmp_path / "first", support_first=3)
    week = prepared(log, tmp_path / "week", support_days=7)
    assert share.array("support")[-1] == 16
    assert first.array("support")[-1] == 3
    assert week.array("support")[-1] == 7
    for data in (share, first, week):
        rows = data.interactions().collect()
        for (_,), part in rows.group_by("user"):
            assert part.filter(~pl.col("query"))["time"].max() < part.filter("query")["time"].min()


def test_no_future_leaks(log: pl.DataFrame, tmp_path: Path) -> None:
    """What happens after the dates changes nothing of what training sees."""
    later = pl.col("time") >= days(60)
    spoiled = log.with_columns(
        rating=pl.when(later).then(6 - pl.col("rating")).otherwise("rating"),
        item=pl.when(later).then(pl.lit("i7")).otherwise("item"),
    )
    dates = {"validation_from": "2025-03-02", "test_from": "2025-03-22"}
    real, other = prepared(log, tmp_path / "real", **dates), prepared(spoiled, tmp_path / "spoiled", **dates)
    rows = real.training_rows
    assert rows == other.training_rows
    for name in ("item", "target"):
        assert np.array_equal(real.array(name)[:rows], other.array(name)[:rows])
    assert real.vocabulary == other.vocabulary
    liked = [data.items().select("item", "liked").sort("item").collect() for data in (real, other)]
    assert liked[0].equals(liked[1])  # the encoding of targets


EVENTS: dict[str, Any] = {
    "typed": {"event": "what", "weights": {"view": 1, "buy": 4, "seen": 0}},
    "weighted": {"weight": "rating", "minimum": 3},
    "rated": {"target": "rating", "threshold": 3},
}


@pytest.mark.parametrize("kind", EVENTS)
@pytest.mark.parametrize("new_items", [0, "time"])
def test_choices_are_made_of_what_was_known(kind: str, new_items: object, log: pl.DataFrame, tmp_path: Path) -> None:
    """Events that are added after the dates, or lost, change no choice that training or validation sees."""
    events = pl.concat([log, log.with_columns(pl.col("time") + dt.timedelta(hours=1))]).with_columns(
        what=pl.Series(np.random.default_rng(0).choice(["view", "buy", "seen"], 2 * len(log)))
    )
    known = events.filter(pl.col("time") < days(80))
    shifted = known.filter(pl.col("time") >= days(60)).with_columns(
        time=pl.lit(days(90)), what=pl.lit("buy"), rating=6 - pl.col("rating")
    )
    schema = {
        "target": {"kind": "choice"},
        "interactions": {"user": "user", "item": "item", "time": "time", **EVENTS[kind]},
    }
    dates = {"split": "time", "validation_from": f"{days(60).timestamp()}", "test_from": f"{days(80).timestamp()}"}
    rows = []
    for name, frame in {"all": events, "more": pl.concat([events, shifted, shifted]), "less": known}.items():
        settings = {**dates, "active_users": "drop", "cold_share": 1, "min_interactions": 2, "new_items": new_items}
        data = paml.prepare(interactions=frame, schema=schema, out=tmp_path / name, settings=settings)
        found = data.interactions().join(data.users().with_row_index("row"), left_on="user", right_on="row")
        items = data.items().select("item").with_row_index("row")
        named = found.join(items, left_on="item", right_on="row").filter(pl.col("split").is_in(["train", "validation"]))
        rows.append(named.select("split", "user_right", "item_right", "target", "time").sort(pl.all()).collect())
    assert len(rows[0]) > 500
    assert kind == "rated" or rows[0]["target"].n_unique() > 1
    assert rows[0].equals(rows[1])
    assert rows[0].equals(rows[2])


def test_active_users_come_first_or_not_at_all(log: pl.DataFrame, tmp_path: Path) -> None:
    longer = pl.concat([log, *(log.filter(user=f"u{u}").with_columns(item=pl.lit(f"i{u % 30 - 1}")) for u in (5, 95))])
    data = prepared(longer, tmp_path / "data", active_users="train", cold_share=0.97, user_ratio="6:2:2")
    marked = data.users().filter("training_only").collect()
    assert set(marked["split"]) <= {"train"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"validation_from": "soon"}, "a date such as 2026-11-17"),
        ({"validation_from": "2025-03-22", "test_from": "2025-03-02"}, "is before 2025-03-22"),
        ({"validation_from": "2020-01-01"}, "nobody appeared before"),
        ({"split": "random", "test_from": "2025-03-02"}, "with split=time only"),
        ({"support_first": 3, "support_days": 7}, "not both"),
        ({"support_by": "random"}, "support_by=time"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str, log: pl.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(paml.PamlError, match=message):
        prepared(log, tmp_path / "data", **settings)
    assert not (tmp_path / "data").exists()


def test_a_log_without_time(log: pl.DataFrame, tmp_path: Path) -> None:
    schema = {**FIELDS, "interactions": {"user": "user", "item": "item", "target": "rating"}}
    with pytest.raises(paml.SettingsError, match="the interactions have no time"):
        paml.prepare(interactions=log, **tables(), schema=schema, out=tmp_path / "data", split="time")


def test_a_comparison_keeps_the_dates(log: pl.DataFrame, tmp_path: Path) -> None:
    from paml.data.resplit import resplit

    data = prepared(log, tmp_path / "data")
    results = paml.compare(data, [], seeds=2, baselines=["bias", "popular"], out=tmp_path / "comparison")
    assert results.plan.same_split
    with pytest.raises(paml.SettingsError, match="depends on time"):
        resplit(data, 1, tmp_path / "other")


SECONDS = pl.col("time").dt.epoch("us") / 1e6
UNITS = {"milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "settings", [{"support_days": 7.0}, {"validation_from": "2025-03-02"}, {"split": "random", "support_days": 7.0}]
)
def test_times_of_any_unit_where_days_are_counted(
    unit: str, settings: dict[str, Any], log: pl.DataFrame, tmp_path: Path
) -> None:
    dates = prepared(log, tmp_path / "dates", **settings)
    log = log.with_columns(time=SECONDS * UNITS[unit])
    numbers = prepared(log, tmp_path / "numbers", **settings)
    assert numbers.fingerprint == dates.fingerprint
    assert prepared_again(log, tmp_path / "numbers", **settings).path == numbers.path


def prepared_again(log: pl.DataFrame, out: Path, **settings: Any) -> paml.Dataset:
    usual = {"split": "time", "active_users": "drop", "cold_share": 1, "min_interactions": 2}
    return paml.prepare(
        interactions=log, **tables(), schema=FIELDS, out=out, reuse=True, settings={**usual, **settings}
    )


def test_a_number_beside_a_date_is_of_the_logs_unit(log: pl.DataFrame, tmp_path: Path) -> None:
    both = {"validation_from": "2025-02-12", "test_from": "2025-03-02"}
    expected = prepared(log, tmp_path / "dates", **both)
    number = f"{1e3 * dt.datetime(2025, 3, 2, tzinfo=dt.UTC).timestamp()}"
    log = log.with_columns(time=SECONDS * 1e3)
    found = prepared(log, tmp_path / "numbers", validation_from="2025-02-12", test_from=number)
    assert found.fingerprint == expected.fingerprint


def test_dates_as_they_are_reported_can_be_given_again(log: pl.DataFrame, tmp_path: Path) -> None:
    log = log.with_columns(time=SECONDS * 1e3 + 165)  # not whole seconds, so that a date is a number
    found = prepared(log, tmp_path / "once", validation_from="2025-02-12")
    test_from = found.manifest.protocol.test_from
    assert float(test_from) % 1 > 0
    again = prepared(log, tmp_path / "again", validation_from="2025-02-12", test_from=test_from)
    assert again.fingerprint == found.fingerprint


def test_relative_seconds_are_no_dates(log: pl.DataFrame, tmp_path: Path) -> None:
    begun = SECONDS.min()
    expected = prepared(log, tmp_path / "dates", support_days=7, split="random")
    for first in (0, 19_100_000):  # as many as 19100000 would be, but no days
        relative = log.with_columns(time=(SECONDS - begun) / 10 + first)
        found = prepared(relative, tmp_path / f"from{first}", support_days=0.7, split="random")
        assert found.array("support").tolist() == expected.array("support").tolist()


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (pl.col("time").dt.strftime("%Y%m%d").cast(pl.Int64), "times are days written as numbers; support_days needs"),
        (
            pl.when(pl.col("user") < "u5").then(SECONDS).otherwise(SECONDS * 1e3),
            "partly in seconds and partly in milli",
        ),
    ],
)
def test_times_that_cannot_be_counted_in_days(time: pl.Expr, message: str, log: pl.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(paml.DataError, match=message):
        prepared(log.with_columns(time=time), tmp_path / "data", support_days=7)
    assert not (tmp_path / "data").exists()


def test_nobody_tests_if_that_is_asked_for(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data", user_ratio="8:2:0")
    assert (len(users_of(data, "validation")), len(users_of(data, "test"))) == (19, 0)
    assert not any("there are no" in note for note in data.manifest.notes)


def test_a_date_after_which_nobody_comes_is_warned_of(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data", validation_from="2025-03-02", test_from="2030-01-01")
    assert "warning: there are no test users (the dates of 99 users): nothing is evaluated" in data.manifest.notes
    one = prepared(log.filter(user="u1"), tmp_path / "one", split="random", active_users="drop")
    assert any("there are no validation users (user_ratio of 1 users)" in note for note in one.manifest.notes)
