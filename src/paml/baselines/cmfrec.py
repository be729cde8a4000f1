"""Collective matrix factorisation with profiles and contents (`cmfrec`, extra `cmfrec`): new users are folded in.

r = mu + b_u + b_i + p_u . q_i, where the same p_u and q_i also explain the user's profile (p_u . c), the item's content
(q_i . d) and who rated what (`add_implicit_features`). Ratings are scaled to unit variance, so that settings mean the
same on every rating scale. A field is one column per value, a number a column of its own; an unknown value is 0.

A new user's p_u and b_u are the least squares solution given the known ratings and the profile. Users are folded in one
by one: cmfrec 3.5's `factors_multiple` has another solution than `factors_warm` where the profile is sparse and missing
values are zeros, and only that of the latter solves the equations. Somebody without a known rating is folded in by the
profile alone and has no bias.

Legend: N rows, U users, I items, V columns of profile or content, F factors.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from paml.baselines.features import Values
from paml.baselines.rows import Fitted, Setting, SplitRows, tune
from paml.data.dataset import Dataset, Side
from paml.data.schema import Kind

if TYPE_CHECKING:
    from cmfrec import CMF

GRID: tuple[dict[str, Setting], ...] = (
    {"features": 24, "regularisation": 10.0},
    {"features": 24, "regularisation": 8.0},
    {"features": 40, "regularisation": 12.0},
    {"features": 16, "regularisation": 10.0},
    {"features": 16, "regularisation": 5.0},
    {"features": 8, "regularisation": 4.0},  # for data sets with a handful of ratings per user
)
BIAS_REGULARISATION, SIDE_REGULARISATION = 4.0, 1.0
EPOCHS, CG_STEPS = 15, 6


@dataclass(frozen=True)
class CollectiveModel:
    """A fitted factorisation, and the profiles of all users of the data set."""

    model: "CMF"
    scale: float
    profile_UV: sp.csr_array

    def predict(self, rows: SplitRows) -> np.ndarray:
        """mu + b_u + b_i + p_u . q_i with the user folded in."""
        factor_UF, bias_U = self.fold_in(rows)
        product_N = np.einsum("nf,nf->n", factor_UF[rows.user_N], self.model.B_[rows.item_N])
        unit_N = self.model.glob_mean_ + bias_U[rows.user_N] + self.model.item_bias_[rows.item_N] + product_N
        prediction_N: np.ndarray = self.scale * unit_N
        return prediction_N

    def fold_in(self, rows: SplitRows) -> tuple[np.ndarray, np.ndarray]:
        """Factors and bias of each user, by the known support rows and the profile."""
        factor_UF, bias_U = np.zeros((rows.users, self.model.B_.shape[1])), np.zeros(rows.users)
        known = np.flatnonzero(rows.support_N)
        ends = np.cumsum(np.bincount(rows.user_N[known], minlength=rows.users))
        for user, mine in enumerate(np.split(known, ends[:-1])):
            profile = self._profile(rows.first_user + user)
            if len(mine):
                rating = rows.target_N[mine].astype(np.float64) / self.scale
                item = rows.item_N[mine]
                warm = self.model.factors_warm(X_col=item, X_val=rating, return_bias=True, **profile)
                factor_UF[user], bias_U[user] = warm
            elif profile:
                factor_UF[user] = self.model.factors_cold(**profile)
        return factor_UF, bias_U

    def _profile(self, user: int) -> dict[str, np.ndarray]:
        """A user's columns and their values, as cmfrec takes them; nothing if the data set has no profiles."""
        if not self.profile_UV.shape[1]:
            return {}
        place = slice(*self.profile_UV.indptr[user : user + 2])
        return {"U_col": self.profile_UV.indices[place], "U_val": self.profile_UV.data[place]}


def fit_collective(data: Dataset, seed: int) -> Fitted:
    """The collective factorisation with the best number of factors and regularisation."""
    from cmfrec import CMF

    train, profile_UV, content_IV = SplitRows.of(data, "train"), side_table(data, "user"), side_table(data, "item")
    scale = float(train.target_N.std(dtype=np.float64)) or 1.0
    unit_N = train.target_N.astype(np.float64) / scale
    rating_UI = sp.coo_matrix((unit_N, (train.user_N, train.item_N)), shape=(train.users, data.manifest.items))
    known_UV = profile_UV[train.first_user : train.first_user + train.users]

    def fit(features: int, regularisation: float) -> CollectiveModel:
        both = [regularisation] * 2
        model = CMF(
            k=features,
            lambda_=[BIAS_REGULARISATION] * 2 + both + [SIDE_REGULARISATION] * 2,
            add_implicit_features=True,
            NA_as_zero_user=_has_columns(profile_UV),
            NA_as_zero_item=_has_columns(content_IV),
            center_U=False,
            center_I=False,
            niter=EPOCHS,
            max_cg_steps=CG_STEPS,
            use_float=False,
            random_state=seed,
            nthreads=1,  # the same result on every machine
            handle_interrupt=False,
            verbose=False,
        )
        model.fit(
            rating_UI,
            U=sp.coo_matrix(known_UV) if _has_columns(profile_UV) else None,
            I=sp.coo_matrix(content_IV) if _has_columns(content_IV) else None,
        )
        return CollectiveModel(model, scale, profile_UV)

    return tune(data, GRID, fit)


def side_table(data: Dataset, side: Side) -> sp.csr_array:
    """The encoded fields of all users or items, (rows, V): one column per known value, and numbers as they are."""
    rows = data.manifest.users if side == "user" else data.manifest.items
    blocks = [sp.csr_array((rows, 0))]
    for field in data.schema.features(side):
        if field.kind is Kind.NUMERIC:
            blocks.append(sp.csr_array(np.asarray(data.array(f"{side}.{field.name}"), dtype=np.float64)[:, None]))
            continue
        values = Values.of(data, side, field)
        row_E, code_E = values.pairs(np.arange(rows))
        known_E = code_E > 0
        place = row_E[known_E], code_E[known_E] - 1
        block = sp.csr_array((np.ones(known_E.sum()), place), shape=(rows, values.size - 1))
        block.data[:] = 1.0  # a value that a list names twice is one value
        blocks.append(block)
    return sp.csr_array(sp.hstack(blocks, format="csr"))


def _has_columns(table: sp.csr_array) -> bool:
    return bool(table.shape[1])
