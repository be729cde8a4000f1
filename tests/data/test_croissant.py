"""croissant.json: what the files are, for others; nothing of the data set depends on it."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import paml
from paml.data.croissant import described
from paml.files import listed

NO_COLUMNS: dict[str, dict[str, pl.DataType]] = {"users": {}, "items": {}, "interactions": {}}


@pytest.fixture(scope="module")
def text(world: paml.Dataset) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((world.path / "croissant.json").read_text())
    return found


def test_it_names_every_file_with_its_digest(world: paml.Dataset, text: dict[str, Any]) -> None:
    assert text["@type"] == "sc:Dataset"
    assert text["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert text["identifier"] == world.fingerprint
    files = {one["@id"]: one for one in text["distribution"]}
    assert set(files) == set(world.manifest.files)
    for name, one in files.items():
        assert one["sha256"] == listed(world.path / name).sha256
        assert one["contentUrl"] == name


def test_it_has_the_columns_of_the_tables_with_their_types(world: paml.Dataset, text: dict[str, Any]) -> None:
    for table in text["recordSet"]:
        columns = pl.read_parquet(world.path / f"{table['@id']}.parquet").columns
        assert [one["name"] for one in table["field"]] == columns
        for one in table["field"]:
            assert one["source"] == {
                "fileObject": {"@id": f"{table['@id']}.parquet"},
                "extract": {"column": one["name"]},
            }
    types = {
        one["@id"]: (one["dataType"], one.get("repeated")) for table in text["recordSet"] for one in table["field"]
    }
    assert types["users/user"] == ("sc:Text", None)
    assert types["items/genre"] == ("sc:Text", True)
    assert types["items/year"] == ("sc:Float", None)
    assert types["interactions/user"] == ("sc:Integer", None)
    assert types["interactions/target"] == ("sc:Float", None)
    assert types["interactions/query"] == ("sc:Boolean", None)


def test_the_page_of_a_published_source_is_named_and_own_tables_have_none(world: paml.Dataset) -> None:
    assert "license" not in described(world.manifest, NO_COLUMNS)
    source = world.manifest.source.model_copy(update={"name": "ml-1m"})
    manifest = world.manifest.model_copy(update={"source": source})
    found = described(manifest, NO_COLUMNS)
    assert found["url"] == found["license"] == "https://grouplens.org/datasets/movielens/1m/"
    assert found["isBasedOn"].endswith("/ml-1m.zip")


def test_a_data_set_is_the_same_without_it_or_with_a_publishers_words(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=80, items=30)
    assert "croissant.json" not in data.manifest.files
    (data.path / "croissant.json").write_text("{}")
    again = paml.open_data(data.path)
    again.verify()
    (data.path / "croissant.json").unlink()
    again.verify()
    assert paml.open_data(data.path).fingerprint == data.fingerprint


@pytest.mark.filterwarnings("ignore")
def test_the_reference_implementation_reads_it(world: paml.Dataset) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason="mlcroissant is not installed: pip install mlcroissant")
    found = mlcroissant.Dataset(jsonld=str(world.path / "croissant.json"))
    assert not found.metadata.issues.errors
    first = next(iter(found.records("users")))
    assert first["users/user"].decode() == world.users().collect()["user"][0]
