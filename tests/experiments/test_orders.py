"""Which runs are ranked in comparisons."""

from pathlib import Path

import paml
from paml.experiments.orders import can_be_ranked


def test_hidden_layers_are_not_ranked_in_large_catalogues(world: paml.Dataset, tmp_path: Path) -> None:
    wide = paml.train(world, "melu", "paper", out=tmp_path / "wide", epochs=0)
    factors = paml.train(world, "melu", out=tmp_path / "factors", epochs=0, ensemble_size=1)
    assert can_be_ranked(wide, 966, 3883)  # MovieLens-1M
    assert not can_be_ranked(wide, 1545, 185_973)  # Book-Crossing
    assert can_be_ranked(factors, 1545, 185_973)


def test_the_default_is_ranked_on_book_crossing(world: paml.Dataset, tmp_path: Path) -> None:
    """Sixteen networks with affinities for ratings, four for choice."""
    settings = {"epochs": 0, "affinity_fields": "director", "item_embedding": 4, "prior_from_items": 0}
    sizes = {"ensemble_size": 16, "choice.ensemble_size": 4}
    run = paml.train(world, "ridge", out=tmp_path / "run", settings={**settings, **sizes})
    assert can_be_ranked(run, 1563, 185_973)
