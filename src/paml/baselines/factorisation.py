"""Matrix factorisation retrained with the new users' support ratings: a reference that may do what methods may not.

r = mu + b_u + b_i + p_u . q_i, biases and factors learnt together by gradient descent (Adam, one-cycle schedule) on
ratings scaled to unit variance, so that settings mean the same on every rating scale. A row with n ratings is pulled
towards 0 by L2 with weight n * regularisation + PRIOR: the first part keeps rows with many ratings from overfitting,
the second part those with few. A user or an item without a rating has bias 0 and factors 0.

Legend: N rows, Q query rows, K known rows, B rows of a batch, U users, I items, F columns of a table.
"""

from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

from paml.baselines.rows import Fitted, Setting, SplitRows, tune
from paml.data.dataset import Dataset

GRID: tuple[dict[str, Setting], ...] = (
    {"features": 64, "regularisation": 0.07},
    {"features": 64, "regularisation": 0.09},
    {"features": 64, "regularisation": 0.3},  # for data sets with a handful of ratings per user
    {"features": 200, "regularisation": 0.06},
)
BIAS_REGULARISATION, PRIOR = 0.02, 2.0
LEARNING_RATE, WARM_UP, START = 0.01, 0.1, 0.1
EPOCHS, BATCH, MIN_BATCHES = 12, 4096, 120  # small data sets get smaller batches: an epoch has at least MIN_BATCHES


@dataclass(frozen=True)
class Factors:
    """A fitted factorisation of all users and items: a user's row is (p_u, b_u, 1), an item's (q_i, 1, b_i)."""

    mean: float
    scale: float
    user_UF: np.ndarray
    item_IF: np.ndarray

    def predict(self, user_N: np.ndarray, item_N: np.ndarray) -> np.ndarray:
        """mu + b_u + b_i + p_u . q_i."""
        product_N = np.einsum("nf,nf->n", self.user_UF[user_N], self.item_IF[item_N])
        prediction_N: np.ndarray = self.mean + self.scale * product_N
        return prediction_N


class Table:
    """The rows of one side while they are learnt, only those with a rating: Adam need not carry the others."""

    def __init__(
        self, key_K: np.ndarray, size: int, features: int, bias: int, regularisation: float, generator: torch.Generator
    ) -> None:
        """`bias` is the column of this side's bias, `features` or the one after it; the other column stays 1."""
        self.size, self.one = size, 2 * features + 1 - bias
        self.rated, code_K, count = np.unique(key_K, return_inverse=True, return_counts=True)
        self.code_K = torch.as_tensor(code_K)
        self.prior = torch.as_tensor(PRIOR / count, dtype=torch.float32)[:, None]
        self.pull_F = torch.full((features + 2,), regularisation)
        self.pull_F[bias] = BIAS_REGULARISATION
        self.free_F = torch.ones(features + 2)
        self.free_F[self.one] = 0.0
        self.rows = torch.zeros(len(count), features + 2)
        self.rows[:, :features] = START * torch.randn(len(count), features, generator=generator)
        self.rows[:, self.one] = 1.0
        self.rows.grad = torch.zeros_like(self.rows)

    def write_gradient(self, code_B: Tensor, row_BF: Tensor, error_B1: Tensor, other_BF: Tensor) -> None:
        """Half the gradient of the batch's mean of error^2 + pull * row^2."""
        assert self.rows.grad is not None
        pull_BF = self.pull_F + self.prior[code_B]
        gradient_BF = (pull_BF * row_BF - error_B1 * other_BF) * self.free_F / len(code_B)
        # Adds in the order of the batch, whatever the number of threads.
        self.rows.grad.zero_().index_add_(0, code_B, gradient_BF)

    def spread(self) -> np.ndarray:
        """The rows of all users or items; where there is no rating, factors and bias are 0."""
        spread = np.zeros((self.size, self.rows.shape[1]), dtype=np.float32)
        spread[:, self.one] = 1.0
        spread[self.rated] = self.rows.numpy()
        return spread


def factorise(
    user_K: np.ndarray,
    item_K: np.ndarray,
    rating_K: np.ndarray,
    users: int,
    items: int,
    features: int,
    regularisation: float,
    generator: torch.Generator,
) -> Factors:
    """Fit the known ratings; the same state of the generator gives the same factors."""
    mean = float(rating_K.mean(dtype=np.float64))
    scale = float(rating_K.std(dtype=np.float64)) or 1.0
    unit_K1 = torch.as_tensor((rating_K - mean) / scale, dtype=torch.float32)[:, None]
    user = Table(user_K, users, features, features, regularisation, generator)
    item = Table(item_K, items, features, features + 1, regularisation, generator)
    batch = max(1, min(BATCH, len(unit_K1) // MIN_BATCHES))
    optimiser = torch.optim.Adam([user.rows, item.rows], fused=True)
    cycle = OneCycleLR(optimiser, LEARNING_RATE, total_steps=EPOCHS * -(-len(unit_K1) // batch), pct_start=WARM_UP)
    for _ in range(EPOCHS):
        order_K = torch.randperm(len(unit_K1), generator=generator)
        for first in range(0, len(order_K), batch):
            pick_B = order_K[first : first + batch]
            user_B, item_B = user.code_K[pick_B], item.code_K[pick_B]
            user_BF, item_BF = user.rows[user_B], item.rows[item_B]
            error_B1 = unit_K1[pick_B] - (user_BF * item_BF).sum(1, keepdim=True)
            user.write_gradient(user_B, user_BF, error_B1, item_BF)
            item.write_gradient(item_B, item_BF, error_B1, user_BF)
            optimiser.step()
            cycle.step()
    return Factors(mean, scale, user.spread(), item.spread())


@dataclass(frozen=True)
class RetrainedModel:
    """A factorisation refitted on training and known support rows, as any method must be that cannot fold in users."""

    train: SplitRows
    items: int
    settings: dict[str, Setting]
    seed: int

    def predict(self, rows: SplitRows) -> np.ndarray:
        """Refit with these users included, then predict the query rows."""
        pick_Q, prediction_N = np.flatnonzero(rows.query_N), np.zeros(len(rows.query_N))
        prediction_N[pick_Q] = self.refit(rows).predict(self.train.users + rows.user_N[pick_Q], rows.item_N[pick_Q])
        return prediction_N

    def refit(self, rows: SplitRows) -> Factors:
        """What must be done whenever new users arrive."""
        train, known_N = self.train, rows.support_N
        return factorise(
            np.concatenate([train.user_N, train.users + rows.user_N[known_N]]),
            np.concatenate([train.item_N, rows.item_N[known_N]]),
            np.concatenate([train.target_N, rows.target_N[known_N]]),
            train.users + rows.users,
            self.items,
            generator=torch.Generator().manual_seed(self.seed),
            **self.settings,  # type: ignore[arg-type]
        )


def fit_retrained(data: Dataset, seed: int) -> Fitted:
    """The factorisation that is best when refitted with the new users' support rows."""
    train, items = SplitRows.of(data, "train"), data.manifest.items
    fitted = tune(data, GRID, lambda **settings: RetrainedModel(train, items, settings, seed))
    started = perf_counter()
    RetrainedModel(train, items, fitted.chosen, seed).refit(SplitRows.of(data, "validation"))
    return replace(fitted, refit_seconds=perf_counter() - started)
