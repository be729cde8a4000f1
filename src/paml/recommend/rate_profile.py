"""Reference users: groups, rates and embeddings of some training users, without ids (RUN/reference_users.parquet).

Legend: P users of the sample, H width of the user embedding.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch

from paml.data.dataset import Dataset
from paml.episodes.features import FeatureTable
from paml.errors import FormatError
from paml.files import Listed, read_table, write_table
from paml.methods.learner import Ensemble

MAX_USERS = 10_000
USERS_AT_ONCE = 1024
BINS = 20
SIMILAR = 10
EQUAL = 0.01  # share of the largest rate within which rates are practically the same


@dataclass(frozen=True)
class RateProfile:
    """A user's rate compared with the rates of the reference users."""

    rate: float
    percentile: float
    """Percentage of reference users with a smaller rate; equal rates count half."""
    edges: tuple[float, ...]
    """Bounds of the histogram's bins, one more than there are bins."""
    major: tuple[int, ...]
    """Major users per bin."""
    minor: tuple[int, ...]
    similar: dict[str, int]
    """Groups of the reference users with the nearest embeddings."""
    equal: bool
    """Whether all rates are practically the same, so that there is nothing to compare."""


class ReferenceUsers:
    """A sample of the training users; never changed after loading."""

    def __init__(self, major_P: np.ndarray, rate_P: np.ndarray, h_PH: np.ndarray) -> None:
        self.major_P, self.rate_P, self.h_PH = major_P, rate_P, h_PH
        self._sorted_P = np.sort(rate_P)
        low, high = float(rate_P.min()), float(rate_P.max())
        # at least a hundredth of the rates' size: a fixed rate is one value, and personal rates may hardly differ
        least = EQUAL * max(abs(high), 1e-6)
        self._equal = high - low <= least
        wider = max(least - (high - low), 0.0) / 2
        self._edges = np.linspace(low - wider, high + wider, BINS + 1)
        self._major, self._minor = (
            tuple(np.histogram(rate_P[group], self._edges)[0].tolist()) for group in (major_P, ~major_P)
        )

    @classmethod
    def load(cls, path: Path, expected: Listed, width: int) -> "ReferenceUsers":
        """Read what `write_reference_users` wrote; `width` is that of the first member's user embeddings."""
        table = read_table(path, expected, ("group", "rate", "h"), "train again")
        h_PH = np.array(table["h"].to_list(), dtype=np.float32).reshape(len(table), -1)
        if not len(table) or h_PH.shape[1] != width:
            raise FormatError(f"does not have {width} numbers per user", where=path, remedy="train again")
        return cls((table["group"] == "major").to_numpy(), table["rate"].to_numpy(), h_PH)

    def rate_profile(self, rate: float, h_H: np.ndarray) -> RateProfile:
        """The profile of a user with this rate and embedding."""
        below, upto = (np.searchsorted(self._sorted_P, np.float32(rate), side) for side in ("left", "right"))
        distance_P = ((self.h_PH - h_H) ** 2).sum(axis=1)
        near = np.argsort(distance_P, kind="stable")[:SIMILAR]
        major = int(self.major_P[near].sum())
        return RateProfile(
            rate=rate,
            percentile=float(50.0 * (below + upto) / len(self._sorted_P)),
            edges=tuple(self._edges.tolist()),
            major=self._major,
            minor=self._minor,
            similar={"major": major, "minor": len(near) - major},
            equal=self._equal,
        )


@torch.no_grad()
def write_reference_users(ensemble: Ensemble, data: Dataset, path: Path, seed: int) -> None:
    """Store a random sample of the training users: group, rate (mean over members), first member's embedding."""
    first, end = data.manifest.splits["train"]
    row_P = first + np.random.default_rng([seed, 4]).permutation(end - first)[:MAX_USERS]
    features = FeatureTable.of(data, "user", ensemble.inputs)
    device = next(ensemble.parameters()).device
    rates, embeddings = [], []
    for start in range(0, len(row_P), USERS_AT_ONCE):
        some_B = row_P[start : start + USERS_AT_ONCE]
        users = features.rows(some_B).to(device)
        h_BH = [member.network.embed_users(users) for member in ensemble.members]
        pairs = [*zip(ensemble.members, h_BH, strict=True)]
        rate_B = [member.rates.of_training_users(h, some_B).per_user(users.count) for member, h in pairs]
        rates.append(torch.stack(rate_B).mean(dim=0).numpy(force=True))
        embeddings.append(h_BH[0].numpy(force=True))
    group = np.where(data.array("major")[row_P], "major", "minor")
    table = pl.DataFrame(
        {
            "group": group,
            "rate": np.concatenate(rates).astype(np.float32),
            "h": pl.Series(np.concatenate(embeddings).tolist(), dtype=pl.List(pl.Float32)),
        }
    )
    write_table(path, table)
