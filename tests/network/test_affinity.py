"""Affinity of a whole catalogue, materialised or looked up by value: the same answers, whatever the items."""

from pathlib import Path

import numpy as np
import pytest

import paml
from paml.network.affinity import Affinity, AffinityTable, JointAffinityTable
from smalltables import SCHEMA_TOML, write_tables

CONTEXT = 'time = "when"\n[interactions.context]\ndevice = "categorical"\n'
FIELDS = 'code = { kind = "categorical", prefix = 2 }\nblank = { kind = "multi", column = "nothing" }\n'
NETWORK = {"network": "factors", "item_embedding": 3, "prior_from_items": 2, "prior_from_profile": True}


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    """Items without genres, without a code, and with a field that is always blank; interactions with a context."""
    folder = write_tables(tmp_path_factory.mktemp("gaps") / "tables", users=60, items=30)
    films = (folder / "movies.csv").read_text().splitlines()
    codes = ["123", "129", "", " ", "45-6", "4-56"]
    rows = [f"{films[0]},code,nothing"]
    for i, film in enumerate(films[1:]):
        blanked = film.replace(f"drama|genre{i % 3}", "") if i % 4 == 0 else film
        rows.append(f"{blanked},{codes[i % 6]},")
    (folder / "movies.csv").write_text("\n".join(rows) + "\n")
    log = (folder / "ratings.csv").read_text().splitlines()
    rated = [f"{log[0]},device", *(f"{line},{'ab'[k % 3 == 0]}" for k, line in enumerate(log[1:]))]
    (folder / "ratings.csv").write_text("\n".join(rated) + "\n")
    (folder / "schema.toml").write_text(SCHEMA_TOML.replace('time = "when"\n', CONTEXT) + FIELDS)
    return paml.prepare("tables", folder, tmp_path_factory.mktemp("gaps") / "data", cold_share=1, min_interactions=2)


@pytest.mark.parametrize("hidden", ["", "5"])
@pytest.mark.parametrize(
    ("method", "affinity_fields"), [("melu", "code,genres"), ("ridge", "genres"), ("meta_sgd", "blank,code")]
)
def test_affinity_is_the_same_looked_up_or_materialised(
    method: str, affinity_fields: str, hidden: str, gaps: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**NETWORK, "affinity_fields": affinity_fields, "hidden": hidden, "ensemble_size": 4, "epochs": 1}
    materialised = paml.train(gaps, method, out=tmp_path / "run", settings=settings).predictor
    monkeypatch.setattr(Affinity, "is_looked_up", lambda affinity, items: True)
    for path in ("members", "plan"):
        monkeypatch.setattr(f"paml.recommend.{path}.CELLS_AT_ONCE", 40)  # many chunks
    for table in (AffinityTable, JointAffinityTable):
        monkeypatch.setattr(table, "smallest_chunk", 4)
    looked_up = paml.load(tmp_path / "run").predictor
    assert isinstance(looked_up.members[0].table, AffinityTable)
    assert (looked_up.plan is None) == bool(hidden)
    items = ["0", "4", "8", "5"]
    for ratings in ({}, {"0": 4, "4": 1}, {"3": 2}):
        one, other = materialised.adapt({}, ratings), looked_up.adapt({}, ratings)
        for context in (None, {"device": "b"}):
            np.testing.assert_allclose(other.scores(context), one.scores(context), atol=1e-5)
            np.testing.assert_allclose(other.predict(items, context), one.predict(items, context), atol=1e-5)
            for these, those in zip(one.reasons(items, 9, context), other.reasons(items, 9, context), strict=True):
                effect = {reason.item: reason.effect for reason in those}
                np.testing.assert_allclose([effect[r.item] for r in these], [r.effect for r in these], atol=1e-5)
        assert other.next_question() is not None
    new_users = [paml.NewUser({}, (paml.Rating("0", 4), paml.Rating("9", 2))), paml.NewUser({}), paml.NewUser({})]
    together = (predictor.adapt_many(new_users, score=True) for predictor in (materialised, looked_up))
    for one, other in zip(*together, strict=True):
        np.testing.assert_allclose(other.scores(), one.scores(), atol=1e-5)


def test_naming_a_field_twice_is_refused(gaps: paml.Dataset, tmp_path: Path) -> None:
    with pytest.raises(
        paml.SettingsError, match="affinity_fields: code, code names a field twice; name each field once"
    ):
        paml.train(gaps, "ridge", out=tmp_path / "run", settings={**NETWORK, "affinity_fields": "code,code"})
