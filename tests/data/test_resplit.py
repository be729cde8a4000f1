from pathlib import Path

import polars as pl
import pytest

import paml
from paml.data.resplit import resplit
from paml.errors import PamlError


def by_id(data: paml.Dataset) -> pl.DataFrame:
    """All interactions with the names of users and items, in an order that does not depend on the split."""
    users, items, rows = (frame.collect() for frame in (data.users(), data.items(), data.interactions()))
    return rows.select(
        user=users["user"].gather(rows["user"]), item=items["item"].gather(rows["item"]), target="target"
    ).sort("user", "item", "target")


@pytest.mark.parametrize("kind", ["rating", "click"])
def test_the_same_data_split_differently(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    data: paml.Dataset = request.getfixturevalue("world" if kind == "rating" else "click_world")
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
    assert other.manifest.source.users_without_profile == data.manifest.source.users_without_profile == 0
    with pytest.raises(PamlError, match="already exists"):
        resplit(data, 6, tmp_path / "again")


def test_active_users_are_never_tested(tables: Path, tmp_path: Path) -> None:
    """The five of twenty users with the most ratings train in every split; the paper's rule drops them."""
    data = paml.prepare("tables", tables, tmp_path / "a", cold_share=0.75, min_interactions=2)
    rule = "75% with the least log data, the others in training only"
    assert paml.describe(data)["dropped"][rule] == 0
    dropped = paml.prepare("tables", tables, tmp_path / "b", cold_share=0.75, active_users="drop")
    assert "training_only" not in dropped.users().collect_schema()
    other = resplit(data, 5, tmp_path / "c")
    active = [frame.users().filter("training_only").collect().sort("user") for frame in (data, other)]
    assert active[0]["user"].equals(active[1]["user"])
    assert {split for users in active for split in users["split"]} == {"train"}
    cold = data.users().filter(~pl.col("training_only")).collect()
    assert set(cold["user"]) == set(dropped.users().collect()["user"])
    assert sorted(cold["split"]) == sorted(dropped.users().collect()["split"])
    assert resplit(other, 6, tmp_path / "d").manifest.users == data.manifest.users
    assert "training_only" not in data.vocabulary.user


def test_users_without_profile_are_counted_from_the_record(tables: Path, tmp_path: Path) -> None:
    """Users whose profile happens to be blank do not count, nor do users of a source without profiles."""
    users = tables / "users.csv"
    users.write_text(users.read_text().replace('4,M,21,"Town, 0"\n', "4,,,\n").replace('5,F,22,"Town, 1"\n', ""))
    data = paml.prepare("tables", tables, tmp_path / "a", cold_share=1, drop_invalid_profiles=False)
    other = resplit(data, 5, tmp_path / "b")
    assert other.manifest.source.users_without_profile == data.manifest.source.users_without_profile == 1
    assert resplit(other, 6, tmp_path / "c").manifest.source.users_without_profile == 1
