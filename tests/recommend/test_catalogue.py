"""All items of a run: found by title or id."""

import polars as pl
import pytest

import paml
from paml.data.schema import Field, Kind, Schema, Target
from paml.recommend.catalogue import Catalogue


def test_search_finds_titles_and_ids() -> None:
    table = pl.DataFrame(
        {
            "item": ["1", "2", "toy", "4"],
            "title": ["Toy Story (1995)", "Amélie", "Something else", None],
            "_ratings": [5, 9, 1, 0],
            "_share": pl.Series([0.5, 0.9, 0.1, 0.0], dtype=pl.Float32),
            "_vector": pl.Series([[0.0]] * 4, dtype=pl.Array(pl.Float32, 1)),
        }
    )
    schema = Schema(
        user=(), item=(Field(name="title", kind=Kind.IDENTIFIER),), target=Target(kind="rating", low=1, high=5)
    )
    catalogue = Catalogue(table, schema)

    def found(text: str, limit: int = 20) -> list[str]:
        return [one.item for one in catalogue.search(text, limit)]

    assert found("toy sto") == found("STORY toy") == ["1"]
    assert found("amelie") == found("AMÉLIE") == found("Ame\u0301lie") == ["2"]
    assert found("toy") == ["toy", "1"]  # the exact id first
    assert found("") == ["2", "1", "toy", "4"]  # best known first
    assert found("", 2) == ["2", "1"]
    assert found("(.*") == found("z" * 1_000_000) == []
    assert catalogue.title("4") == "4"
    with pytest.raises(paml.SettingsError, match="limit 0"):
        catalogue.search("toy", 0)
