import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import paml
from paml.data.dataset import Dataset
from paml.errors import FormatError, PamlError


@pytest.fixture
def copy(world: Dataset, tmp_path: Path) -> Path:
    return Path(shutil.copytree(world.path, tmp_path / "copy"))


def test_the_same_seed_gives_the_same_fingerprint_and_another_seed_another(world: Dataset, tmp_path: Path) -> None:
    again = paml.prepare("synthetic", out=tmp_path / "again", users=400, items=80)
    other = paml.prepare("synthetic", out=tmp_path / "other", users=400, items=80, seed=1)
    assert again.fingerprint == world.fingerprint
    assert other.fingerprint != world.fingerprint
    for file in ("users", "items", "interactions"):
        left, right = (pl.read_parquet(data.path / f"{file}.parquet") for data in (world, again))
        assert left.equals(right)


def test_tables_and_arrays_agree(world: Dataset) -> None:
    users, items, rows = world.users().collect(), world.items().collect(), world.interactions().collect()
    offsets = world.array("offsets")
    assert np.array_equal(np.repeat(np.arange(len(users)), np.diff(offsets)), rows["user"].to_numpy())
    assert np.array_equal(world.array("item"), rows["item"].to_numpy())
    assert np.array_equal(world.array("target"), rows["target"].to_numpy())
    assert np.array_equal(world.array("support"), users["support_rows"].to_numpy())
    assert np.array_equal(world.array("major"), (users["group"] == "major").to_numpy())
    assert users["split"].to_list() == [name for name, (a, b) in world.manifest.splits.items() for _ in range(b - a)]
    for field in world.schema.features("user"):
        values = ["?", *world.vocabulary.user[field.name].values]  # type: ignore[union-attr]
        codes = world.array(f"user.{field.name}")
        decoded = [values[code] for code in codes]
        assert all(a in (b, "?") for a, b in zip(decoded, users[field.name], strict=True))
    codes, starts = world.array("item.genre"), world.array("item.genre.offsets")
    genres = ["?", *world.vocabulary.item["genre"].values]  # type: ignore[union-attr]
    decoded_lists = [[genres[c] for c in codes[a:b]] for a, b in pairwise(starts)]
    assert decoded_lists == items["genre"].to_list()


def test_arrays_are_memory_mapped(world: Dataset) -> None:
    assert isinstance(world.array("target"), np.memmap)
    assert not world.array("target").flags.writeable


def test_vocabulary_knows_training_users_only(world: Dataset) -> None:
    users = world.users().collect()
    training = users.filter(pl.col("split") == "train")
    for field in ("zip", "occupation"):
        assert set(world.vocabulary.user[field].values) == set(training[field])  # type: ignore[union-attr]
    assert set(users["zip"]) > set(training["zip"])  # the small world has zip codes that are not in training
    rows = world.interactions().collect()
    interacted = rows.filter(pl.col("user") < world.manifest.splits["train"][1])["item"].unique()
    year = world.items().collect()["year"].gather(interacted)
    scaling = world.vocabulary.item["year"]
    assert (scaling.mean, scaling.deviation) == pytest.approx((year.mean(), year.std(ddof=0)))  # type: ignore[union-attr]


def test_counts_add_up(world: Dataset) -> None:
    first = world.manifest.rules[0]
    assert first.kept + first.dropped == 400
    for before, after in pairwise(world.manifest.rules):
        assert after.kept + after.dropped == before.kept
    assert world.manifest.rules[-1].kept == world.manifest.users


def test_an_edited_manifest_is_refused(copy: Path) -> None:
    manifest = copy / "manifest.json"
    values = json.loads(manifest.read_text())
    values["protocol"]["seed"] = 7
    manifest.write_text(json.dumps(values))
    with pytest.raises(FormatError, match="fingerprint mismatch: the manifest was edited; prepare the data set again"):
        Dataset.open(copy)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"format": 99}', "is of format 99, and this version reads format 3"),
        ('{"format": 3}', "created_by"),
    ],
)
def test_a_foreign_manifest_is_refused(copy: Path, text: str, message: str) -> None:
    (copy / "manifest.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        Dataset.open(copy)


def test_missing_truncated_and_changed_files(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such prepared data set"):
        Dataset.open(tmp_path / "nowhere")
    target = copy / "arrays" / "target.npy"
    data = target.read_bytes()
    target.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    changed = Dataset.open(copy)  # same size: only reading it all can tell
    with pytest.raises(FormatError, match=r"arrays/target.npy: differs from what was written"):
        changed.verify()
    target.write_bytes(data[:-10])
    with pytest.raises(FormatError, match=r"target.npy: is missing or has a different size"):
        Dataset.open(copy)


def test_verify_accepts_what_was_written(world: Dataset) -> None:
    world.verify()


def test_an_existing_folder_is_left_alone(world: Dataset) -> None:
    before = world.manifest
    with pytest.raises(PamlError, match="already exists; choose another folder, or remove it first"):
        paml.prepare("synthetic", out=world.path, users=50)
    assert Dataset.open(world.path).manifest == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cold_share": 0.001}, "no users are left after the rule '0% with the least log data'"),
        ({"min_interactions": 1000}, "no users are left after the rule 'at least 1000 ratings'"),
        ({"user_ratio": "0.001:1:1"}, "no training users are left"),
        ({"user": 5}, "unknown setting 'user'; did you mean 'users'"),
    ],
)
def test_settings_that_leave_no_users_or_do_not_exist(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(PamlError, match=message):
        paml.prepare("synthetic", out=tmp_path / "out", **{"users": 100, "items": 30, **settings})
    assert not list(tmp_path.iterdir())


def test_a_source_that_reads_nothing_refuses_a_path(tmp_path: Path) -> None:
    with pytest.raises(PamlError, match="'synthetic' takes no path; leave it out"):
        paml.prepare("synthetic", tmp_path, tmp_path / "out")
