from pathlib import Path

import polars as pl
import pytest

import paml
from paml.data.resplit import resplit
from paml.errors import PamlError


def by_id(data: paml.PreparedData) -> pl.DataFrame:
    """All interactions under the users' and items' own names, in an order that no split decides."""
    users, items, rows = (frame.collect() for frame in (data.users(), data.items(), data.interactions()))
    return rows.select(
        user=users["user"].gather(rows["user"]), item=items["item"].gather(rows["item"]), target="target"
    ).sort("user", "item", "target")


@pytest.mark.parametrize("kind", ["rating", "click"])
def test_the_same_data_split_otherwise(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    data: paml.PreparedData = request.getfixturevalue("world" if kind == "rating" else "click_world")
    other = resplit(data, 5, tmp_path / "other")
    other.verify()
    assert by_id(other).equals(by_id(data))
    for name, (first, end) in data.manifest.splits.items():
        assert other.manifest.splits[name] == (first, end)
    before, after = (frame.users().collect().sort("user") for frame in (data, other))
    assert before.drop("split", "support_rows", "query_rows").equals(after.drop("split", "support_rows", "query_rows"))
    assert before["split"].to_list() != after["split"].to_list()
    assert other.manifest.rules == data.manifest.rules
    assert other.manifest.protocol.seed == 5
    assert other.fingerprint != data.fingerprint
    assert resplit(data, 5, tmp_path / "again").fingerprint == other.fingerprint
    with pytest.raises(PamlError, match="already exists"):
        resplit(data, 6, tmp_path / "again")
