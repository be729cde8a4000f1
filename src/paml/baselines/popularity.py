"""What is popular: among all training users, and among those who share a value of the new user's profile.

By profile: log p_i + w * sum_v log(p_vi / p_i) over the values v of the user's profile, where p_i is the share of
training users who liked item i, and p_vi = (n_vi + s p_i) / (n_v + s) the same among those with value v, shrunk
towards p_i by s users. s and w are tuned. A value that no training user has changes nothing.

Legend: U users, B users of a block, I items, V values of all profile fields.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from paml.baselines.rows import Fitted, Setting, tune_ranker
from paml.data.dataset import Dataset
from paml.data.schema import Field, Kind
from paml.data.vocabulary import EncodedColumn
from paml.episodes import ragged
from paml.episodes.histories import Histories
from paml.episodes.tasks import Known
from paml.evaluation.ranking import Rank

PROFILE_GRID: tuple[dict[str, Setting], ...] = (
    {"strength": 100.0, "weight": 1.0},
    {"strength": 30.0, "weight": 1.0},
    {"strength": 300.0, "weight": 1.0},
    {"strength": 1000.0, "weight": 1.0},
    {"strength": 3000.0, "weight": 1.0},
    {"strength": 30.0, "weight": 0.5},
    {"strength": 1e9, "weight": 1.0},  # popularity itself
)
BINS = 5  # numbers in a profile are cut into this many groups of equal size


@dataclass(frozen=True)
class Popularity:
    """How many training users liked each item."""

    share_I: Tensor
    """Share of the training users."""

    @classmethod
    def fit(cls, histories: Histories) -> "Popularity":
        """p_i = (users who liked item i + 1/2) / (users + 1): above 0 also for items that nobody liked."""
        share_I = (histories.liked_I + 0.5) / (histories.users + 1)
        return cls(torch.from_numpy(share_I.astype(np.float32)))

    def rank(self, data: Dataset) -> Rank:
        """The same for everybody."""
        return lambda known: self.share_I.repeat(len(known.user_B), 1)


@dataclass(frozen=True)
class Profiles:
    """The values of users' profiles as columns of one matrix, field after field."""

    fields: tuple[Field, ...]
    edges: dict[str, np.ndarray]
    """Of numeric fields: where their groups begin, by training users."""
    sizes: tuple[int, ...]
    """Number of values of each field."""

    @classmethod
    def fit(cls, data: Dataset) -> "Profiles":
        """Groups of numbers come from training users; all other values have codes already."""
        fields, (first, end) = data.schema.features("user"), data.manifest.splits["train"]
        inner = np.linspace(0, 1, BINS + 1)[1:-1]
        edges = {
            field.name: np.quantile(data.array(f"user.{field.name}")[first:end], inner)
            for field in fields
            if field.kind is Kind.NUMERIC
        }
        sizes = tuple(
            BINS if field.name in edges else data.manifest.vocabulary[f"user.{field.name}"] for field in fields
        )
        return cls(fields, edges, sizes)

    def matrix(self, data: Dataset, user_B: np.ndarray) -> sp.csr_array:
        """(B, V): 1 for each value that a user has, 1 / length in lists."""
        parts = [
            self._values(data.column("user", field), field, size, user_B)
            for field, size in zip(self.fields, self.sizes, strict=True)
        ]
        return sp.csr_array(sp.hstack(parts) if parts else sp.csr_array((len(user_B), 0), dtype=np.float32))

    def _values(self, column: EncodedColumn, field: Field, size: int, user_B: np.ndarray) -> sp.csr_array:
        count_B, first_B = np.ones(len(user_B), dtype=np.int64), user_B
        if column.offsets is not None:
            first_B = np.asarray(column.offsets[user_B], dtype=np.int64)
            count_B = np.asarray(column.offsets[user_B + 1], dtype=np.int64) - first_B
        code_E = column.values[ragged.positions(first_B, count_B)]
        if field.name in self.edges:
            code_E = np.digitize(code_E, self.edges[field.name])
        share_E = np.repeat(1 / np.maximum(count_B, 1), count_B).astype(np.float32)
        places = ragged.owners(count_B), code_E.astype(np.int64)
        return sp.csr_array((share_E, places), shape=(len(user_B), size))


@dataclass(frozen=True)
class ProfilePopularity:
    """Popularity among users with the same values in their profiles."""

    profiles: Profiles
    log_share_I: np.ndarray
    gain_VI: sp.csr_array
    """log(1 + n_vi / (s p_i)): 0 for most items, if a value is rare."""
    loss_V: np.ndarray
    """log(1 + n_v / s), so that gain - loss = log(p_vi / p_i)."""
    weight: float

    @classmethod
    def fit(cls, data: Dataset, histories: Histories, strength: float, weight: float) -> "ProfilePopularity":
        """Counts of training users; `strength` is s, `weight` is w."""
        profiles, (first, end) = Profiles.fit(data), data.manifest.splits["train"]
        share_I = Popularity.fit(histories).share_I.numpy()
        value_UV = profiles.matrix(data, np.arange(first, end))
        gain_VI = sp.csr_array(value_UV.T @ histories.matrix("liked"))
        gain_VI.data = np.log1p(gain_VI.data / (strength * share_I[gain_VI.indices]))
        loss_V = np.log1p(np.asarray(value_UV.sum(axis=0)) / strength)
        return cls(profiles, np.log(share_I), gain_VI, loss_V, weight)

    def log_shares(self, data: Dataset, known: Known) -> Tensor:
        """Log of the share of users like these who like each item, (B, I)."""
        value_BV = self.profiles.matrix(data, known.user_B)
        lift_BI = (value_BV @ self.gain_VI).toarray() - (value_BV @ self.loss_V)[:, None]
        return torch.from_numpy((self.log_share_I + self.weight * lift_BI).astype(np.float32))

    def rank(self, data: Dataset) -> Rank:
        """By profile alone: what a user rated is not used."""
        return lambda known: self.log_shares(data, known)


def fit_popular(data: Dataset, seed: int) -> Fitted:
    """The number of training users who liked the item: nothing to tune."""
    histories = Histories.of_training(data)
    return tune_ranker(data, [{}], lambda: Popularity.fit(histories))


def fit_popular_profile(data: Dataset, seed: int) -> Fitted:
    """Popularity by profile; the grid includes popularity itself."""
    histories = Histories.of_training(data)
    return tune_ranker(data, PROFILE_GRID, lambda **settings: ProfilePopularity.fit(data, histories, **settings))


def tuned_profile(data: Dataset) -> ProfilePopularity:
    """Popularity by profile with the best settings, as a part of other rankers."""
    ranker = fit_popular_profile(data, 0).ranker
    assert isinstance(ranker, ProfilePopularity)
    return ranker
