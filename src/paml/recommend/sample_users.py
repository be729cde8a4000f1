"""Users made up from what a run knows, to measure with: no ratings of training users are kept in a run."""

import numpy as np

from paml.data.schema import Target
from paml.recommend.catalogue import Catalogue
from paml.recommend.requests import NewUser, ProfileField, Rating

MAX_RATINGS = 20
KNOWN_VALUES = 50  # of a field, the most common ones


def sample_users(
    fields: tuple[ProfileField, ...], catalogue: Catalogue, target: Target, count: int, rng: np.random.Generator
) -> list[NewUser]:
    """Random profiles, and a few ratings of random levels; items that many have rated are rated more often."""
    weight_I = 1.0 + catalogue.ratings_I
    chance_I = weight_I / weight_I.sum()
    rated = rng.integers(0, min(MAX_RATINGS, len(catalogue) // 2) + 1, count)
    item_T = rng.choice(len(catalogue), int(rated.sum()), p=chance_I)
    found, end_B = [], np.cumsum(rated)
    for item_S in np.split(item_T, end_B[:-1]):
        profile = {one.name: str(rng.choice(one.values[:KNOWN_VALUES])) for one in fields if one.values}
        ratings = [Rating(catalogue.ids[item], float(rng.choice(target.levels))) for item in np.unique(item_S)]
        found.append(NewUser(profile, ratings))
    return found
