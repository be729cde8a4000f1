"""Facts about items come from training users alone, and unknown values are no content."""

from pathlib import Path

import numpy as np
import pytest

import paml
from paml.data.schema import Kind
from paml.evaluation import item_facts
from paml.evaluation.item_facts import ItemFacts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    return paml.prepare("synthetic", out=tmp_path_factory.mktemp("facts") / "world", users=150, items=60, seed=4)


def test_popularity_is_the_share_of_training_users(data: paml.Dataset) -> None:
    facts, end = ItemFacts.of(data), data.manifest.splits["train"][1]
    offsets, item = data.array("offsets"), data.array("item")
    rated = [set(item[offsets[u] : offsets[u + 1]].tolist()) for u in range(end)]
    share = [np.mean([i in one for one in rated]) for i in range(len(facts))]
    assert facts.popularity_I == pytest.approx(np.array(share))
    assert facts.novelty_I == pytest.approx(-np.log2((np.array(share) * end + 1) / (end + 1)))
    assert (facts.novelty_I >= 0).all()


def test_blocks_of_users_do_not_matter(data: paml.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ItemFacts.of(data).interacted_I
    monkeypatch.setattr(item_facts, "USERS_AT_ONCE", 7)
    assert np.array_equal(ItemFacts.of(data).interacted_I, whole)


def test_contents_are_the_known_values_of_all_fields(data: paml.Dataset) -> None:
    facts, fields = ItemFacts.of(data), data.schema.features("item")
    assert facts.count_I.sum() == len(facts.code_T)
    expected = np.zeros(len(facts), dtype=int)
    for field in (field for field in fields if field.kind is not Kind.NUMERIC):
        column = data.column("item", field)
        if column.offsets is None:
            expected += column.values > 0
        else:
            bounds = zip(column.offsets[:-1], column.offsets[1:], strict=True)
            expected += [int((column.values[a:b] > 0).sum()) for a, b in bounds]
    assert np.array_equal(facts.count_I, expected)
    distinct = sum(
        len(np.unique(data.column("item", field).values[data.column("item", field).values > 0]))
        for field in fields
        if field.kind is not Kind.NUMERIC
    )
    assert len(np.unique(facts.code_T)) == distinct  # the same code of two fields is not the same value


def test_items_without_fields(tmp_path: Path, data: paml.Dataset) -> None:
    bare = paml.open_data(data.path)
    bare.manifest = bare.manifest.model_copy(
        update={"data_schema": data.schema.without([f"item.{field.name}" for field in data.schema.item])}
    )
    facts = ItemFacts.of(bare)
    assert len(facts) == 60
    assert len(facts.code_T) == 0
