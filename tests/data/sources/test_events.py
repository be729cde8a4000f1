"""Events without ratings as choices: added up for each user and item, and clear errors for weights that cannot be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import paml
from paml.data.schema import Target, liked_level

KINDS = ["view", "cart", "buy"]
WEIGHTS = {"view": 1, "cart": 2, "buy": 5}


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Users with repeated events; weights of a column are all above 0."""
    rng, rows = np.random.default_rng(0), 1500
    return pl.DataFrame(
        {
            "who": rng.integers(0, 40, rows),
            "what": rng.integers(0, 30, rows),
            "when": 1_600_000_000 + rng.permutation(rows),
            "event": rng.choice(KINDS, rows, p=[0.7, 0.2, 0.1]),
            "amount": rng.integers(1, 9, rows).astype(float),
            "stars": rng.integers(1, 6, rows),
        }
    )


def prepared(log: Any, out: Path, **entry: Any) -> paml.Dataset:
    schema = {"target": {"kind": "choice"}, "interactions": {"user": "who", "item": "what", "time": "when", **entry}}
    return paml.prepare(interactions=log, schema=schema, out=out, cold_share=1)


def pairs(data: paml.Dataset) -> pl.DataFrame:
    """The rows with the keys of the log, in its types."""
    users, items = data.users().collect()["user"], data.items().collect()["item"]
    rows = data.interactions().collect()
    found = rows.with_columns(who=users.gather(rows["user"]).cast(int), what=items.gather(rows["item"]).cast(int))
    return found.select("who", "what", pl.col("time").cast(int), pl.col("target").cast(int)).sort("who", "what")


def by_hand(log: pl.DataFrame, weight: pl.Expr, base: float) -> pl.DataFrame:
    total = log.group_by("who", "what").agg(pl.col("when").min().alias("time"), weight.sum().alias("total"))
    strength = [min(1 + int(np.floor(np.log2(one / base))), 5) for one in total["total"]]
    return total.with_columns(target=pl.Series(strength)).drop("total").sort("who", "what")


def test_a_plain_log_has_choices_whose_strength_is_how_often_they_occur(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data")
    assert data.schema.target == Target(kind="choice", high=int(pairs(data)["target"].max()))  # type: ignore[call-overload]
    assert pairs(data).equals(by_hand(log, pl.col("who") * 0 + 1, 1).select(pairs(data).columns))
    assert data.manifest.notes[0].startswith(f"1,500 rows became {len(pairs(data)):,} choices")
    once = prepared(log.unique(["who", "what"], maintain_order=True), tmp_path / "once")
    assert once.schema.target.high == 1
    assert paml.describe(once)["histogram"] == {"1": once.manifest.interactions}


def test_no_pair_is_both_known_and_to_be_predicted(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data")
    rows = data.interactions().collect()
    assert len(rows.unique(["user", "item"])) == len(rows) < len(log)
    assert rows["query"].any()


def test_weights_of_events_are_added_up(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data", event="event", weights=WEIGHTS)
    weight = pl.col("event").replace_strict(WEIGHTS, return_dtype=pl.Float64)
    assert pairs(data).equals(by_hand(log, weight, 1).select(pairs(data).columns))
    scaled = prepared(log, tmp_path / "scaled", event="event", weights={k: 0.3 * v for k, v in WEIGHTS.items()})
    assert pairs(scaled).equals(pairs(data))  # only ratios of weights matter


def test_a_weight_of_0_leaves_a_type_out(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data", event="event", weights={**WEIGHTS, "view": 0})
    bought = log.filter(pl.col("event") != "view")
    weight = pl.col("event").replace_strict(WEIGHTS, return_dtype=pl.Float64)
    assert pairs(data).equals(by_hand(bought, weight, 2).select(pairs(data).columns))


def test_a_column_of_weights(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data", weight="amount")
    base = log["amount"].quantile(0.1, "lower")
    assert base == 1
    assert pairs(data).equals(by_hand(log, pl.col("amount"), base).select(pairs(data).columns))
    tiny = log.with_columns(pl.when(pl.col("when") == 1_600_000_000).then(1e-6).otherwise("amount").alias("amount"))
    assert pairs(prepared(tiny, tmp_path / "tiny", weight="amount"))["target"].n_unique() == 5  # not all the strongest
    both = prepared(log, tmp_path / "both", weight="amount", event="event", weights=WEIGHTS)
    assert both.manifest.interactions == data.manifest.interactions


def test_a_minimum_leaves_weak_pairs_out(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data", weight="amount", minimum=6)
    total = log.group_by("who", "what").agg(pl.col("amount").sum()).filter(pl.col("amount") >= 6)
    kept = total.filter(pl.len().over("who") >= 2)  # users with a single row cannot be split
    assert pairs(data).select("who", "what").equals(kept.select("who", "what").sort("who", "what"))


def test_sums_that_reach_the_minimum_but_for_rounding(log: pl.DataFrame, tmp_path: Path) -> None:
    """0.1 + 0.7 is less than 0.8."""
    rows = [(u, i, 1_600_000_000, kind) for u in range(30) for i in range(5) for kind in ("view", "buy")]
    few = pl.DataFrame(rows, ["who", "what", "when", "event"], orient="row")
    data = prepared(few, tmp_path / "data", event="event", weights={"view": 0.1, "buy": 0.7}, minimum=0.8)
    assert data.manifest.interactions == 30 * 5


def test_ratings_of_a_threshold_and_above_are_choices(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data", target="stars", threshold=4)
    last = log.sort("when").unique(["who", "what"], keep="last").filter(pl.col("stars") >= 4)
    kept = last.filter(pl.len().over("who") >= 2)
    assert (
        pairs(data)
        .select("who", "what", "time")
        .equals(kept.select("who", "what", pl.col("when").alias("time")).sort("who", "what"))
    )
    assert data.schema.target.high == 1


def test_the_context_of_a_choice_is_that_of_its_first_event(log: pl.DataFrame, tmp_path: Path) -> None:
    data = prepared(log, tmp_path / "data", context={"event": "categorical"})
    rows = data.interactions().collect().sort("time")
    first = log.sort("when").unique(["who", "what"], keep="first").sort("when")
    assert rows["event"].to_list() == first["event"].to_list()
    assert any(note.startswith("context is kept, but is no input") for note in data.manifest.notes)


def test_files_and_frames_give_the_same_data_set(log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_csv(tmp_path / "log.csv")
    (tmp_path / "schema.toml").write_text(
        '[target]\nkind = "choice"\n[interactions]\nfile = "log.csv"\nuser = "who"\nitem = "what"\ntime = "when"\n'
        'event = "event"\nweights = { view = 1, cart = 2, buy = 5 }\nminimum = 2\n'
    )
    files = paml.prepare("tables", schema=tmp_path / "schema.toml", out=tmp_path / "files", cold_share=1)
    frames = prepared(log, tmp_path / "frames", event="event", weights=WEIGHTS, minimum=2)
    assert files.fingerprint == frames.fingerprint
    again = prepared(log, tmp_path / "again", event="event", weights=WEIGHTS, minimum=2)
    assert again.fingerprint == frames.fingerprint


Spoil = Callable[[pl.DataFrame], pl.DataFrame]


def amount(value: float | None) -> Spoil:
    return lambda log: log.with_columns(
        pl.when(pl.int_range(pl.len()) == 6).then(value).otherwise("amount").alias("amount")
    )


BAD: dict[str, tuple[Spoil, dict[str, Any], str]] = {
    "an event without a weight": (
        lambda log: log,
        {"event": "event", "weights": {"view": 1, "cart": 2}},
        r"interactions.parquet: event 'buy', \d+ rows, has no weight; add it to 'weights', with 0 to leave such rows",
    ),
    "several events without a weight": (
        lambda log: log,
        {"event": "event", "weights": {"view": 1}},
        r"event 'cart', \d+ rows, has no weight \(and 1 more types\)",
    ),
    "a negative weight": (
        lambda log: log,
        {"event": "event", "weights": {**WEIGHTS, "buy": -1}},
        "schema: setting 'interactions.weights.buy' is -1; expected greater than or equal to 0",
    ),
    "a weight that is not finite": (
        lambda log: log,
        {"event": "event", "weights": {**WEIGHTS, "buy": float("inf")}},
        "schema: setting 'interactions.weights.buy' is inf; expected a finite number",
    ),
    "only weights of 0": (
        lambda log: log,
        {"event": "event", "weights": dict.fromkeys(KINDS, 0)},
        "schema: all event types have the weight 0",
    ),
    "a negative amount": (
        amount(-2.0),
        {"weight": "amount"},
        r"interactions.parquet row 7: amount '-2.0' is not a number of 0 or more",
    ),
    "an infinite amount": (amount(float("inf")), {"weight": "amount"}, "row 7: amount 'inf' is not a number"),
    "an amount that is not a number": (amount(float("nan")), {"weight": "amount"}, "row 7: amount is blank"),
    "a blank event": (
        lambda log: log.with_columns(event=pl.when(pl.col("event") == "view").then("event")),
        {"event": "event", "weights": WEIGHTS},
        "event is blank",
    ),
    "amounts of 0": (lambda log: log.with_columns(amount=0.0), {"weight": "amount"}, "has no choices"),
    "a minimum that nothing reaches": (lambda log: log, {"minimum": 1e9}, "has no choices; lower the minimum"),
    "a threshold that nothing reaches": (lambda log: log, {"target": "stars", "threshold": 9}, "has no choices"),
    "a minimum of 0": (lambda log: log, {"minimum": 0}, "setting 'interactions.minimum' is 0"),
    "events without weights": (
        lambda log: log,
        {"event": "event"},
        "'interactions.event' and 'weights' belong together",
    ),
    "weights without events": (
        lambda log: log,
        {"weights": WEIGHTS},
        "'interactions.event' and 'weights' belong together",
    ),
    "a rating without a threshold": (
        lambda log: log,
        {"target": "stars"},
        "'interactions.target' and 'threshold' belong together",
    ),
    "ratings and events": (
        lambda log: log,
        {"target": "stars", "threshold": 4, "weight": "amount"},
        "ratings and events are both given",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_events_get_a_clear_error_and_leave_nothing_behind(case: str, log: pl.DataFrame, tmp_path: Path) -> None:
    spoil, entry, message = BAD[case]
    with pytest.raises(paml.DataError, match=message):
        prepared(spoil(log), tmp_path / "data", **entry)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "entry", "message"),
    [
        ({"kind": "choice", "high": 5}, {}, "a choice target has no scale"),
        ({"kind": "click"}, {}, "setting 'interactions.target' is missing"),
        (
            {"kind": "rating", "low": 1, "high": 5},
            {"target": "stars", "weight": "amount"},
            "'interactions.weight' does not fit a rating target",
        ),
    ],
)
def test_keys_that_do_not_fit_the_target(
    target: dict[str, Any], entry: dict[str, Any], message: str, log: pl.DataFrame, tmp_path: Path
) -> None:
    schema = {"target": target, "interactions": {"user": "who", "item": "what", **entry}}
    with pytest.raises(paml.DataError, match=message):
        paml.prepare(interactions=log, schema=schema, out=tmp_path / "data")


def test_every_choice_is_relevant_and_none_is_0() -> None:
    target = Target(kind="choice", high=3)
    assert liked_level(target) == target.lowest == 1
    assert pl.select(target.is_valid(pl.Series([0.0, 1.0, 3.0, 4.0, 1.5]))).to_series().to_list() == [
        False,
        True,
        True,
        False,
        False,
    ]
    with pytest.raises(paml.SettingsError, match="min_counts is 'clicks', but the targets are choices"):
        paml.prepare("synthetic", target="choice", min_counts="clicks", out="nowhere")
