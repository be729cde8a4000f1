"""No profiles, no item contents, neither: ratings, clicks and choices train and serve; notes say what is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import paml
from paml.errors import SettingsError
from paml.methods.registry import METHODS

USERS, ITEMS = 40, 25
TARGETS: dict[str, dict[str, Any]] = {
    "rating": {"kind": "rating", "low": 1, "high": 5},
    "click": {"kind": "click"},
    "choice": {"kind": "choice"},
}


def tables() -> dict[str, pl.DataFrame]:
    rng = np.random.default_rng(0)
    pairs = [(user, item) for user in range(USERS) for item in rng.choice(ITEMS, 8, replace=False).tolist()]
    log = pl.DataFrame(pairs, ["user", "item"], orient="row").with_columns(
        rating=pl.Series(rng.integers(1, 6, len(pairs))), click=pl.Series(rng.integers(0, 2, len(pairs)))
    )
    users = pl.DataFrame({"user": range(USERS), "gender": rng.choice(["F", "M"], USERS)})
    items = pl.DataFrame({"item": range(ITEMS), "genre": rng.choice(["war", "drama"], ITEMS)})
    return {"interactions": log, "users": users, "items": items}


@pytest.mark.parametrize("missing", ["users", "items", "both"])
@pytest.mark.parametrize("target", TARGETS)
def test_tables_that_are_missing(target: str, missing: str, tmp_path: Path) -> None:
    gone = {"both": {"users", "items"}}.get(missing, {missing})
    frames = {role: frame for role, frame in tables().items() if role not in gone}
    log = {"user": "user", "item": "item", **({} if target == "choice" else {"target": target})}
    schema: dict[str, Any] = {"target": TARGETS[target], "interactions": log}
    sides = {"users": ("user", "gender"), "items": ("item", "genre")}
    schema |= {role: {"key": key, "fields": {name: "categorical"}} for role, (key, name) in sides.items()}
    schema = {role: entry for role, entry in schema.items() if role not in gone}
    data = paml.prepare(**frames, schema=schema, out=tmp_path / "data", cold_share=1)
    said = " ".join(data.manifest.notes)
    assert ("no profiles" in said) == ("users" in gone)
    assert ("no item fields" in said) == ("items" in gone)
    small = {"epochs": 1, "ensemble_size": 1, "item_embedding": 4}
    run = paml.train(data, "paml", out=tmp_path / "run", settings=small)
    rates = run.evaluate()["rate"]
    if "users" in gone:
        assert rates.n_unique() == 1
    user = run.adapt(ratings={"3": 1, "7": 1})
    scores = user.scores()
    assert np.isfinite(scores).all()
    assert len(np.unique(scores.round(6))) > 2  # items differ, though nothing may be known about them but their rows
    assert len(user.recommend(5)) == 5
    assert user.next_question() is not None
    assert len(user.why("5")) == 2
    with pytest.raises(SettingsError, match="there is no profile field"):
        run.adapt(profile={"colour": "red"})


@pytest.mark.parametrize("method", [name for name in METHODS if name != "ridge"])
def test_the_papers_network_without_item_fields(method: str, tmp_path: Path) -> None:
    """Its rows then have no inputs of their own, and every method trains all the same."""
    schema = {"target": TARGETS["rating"], "interactions": {"user": "user", "item": "item", "target": "rating"}}
    data = paml.prepare(interactions=tables()["interactions"], schema=schema, out=tmp_path / "data", cold_share=1)
    run = paml.train(data, method, "paper", out=tmp_path / "run", epochs=1)
    assert run.evaluate()["mse"].is_finite().all()
