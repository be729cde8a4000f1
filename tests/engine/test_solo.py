"""One user's closed form in NumPy, against the system as it is written."""

import numpy as np
import pytest

from paml.engine.solo import ridge, ridge_shares

INPUTS = 6


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("rows", [1, INPUTS - 1, INPUTS, 4 * INPUTS])
def test_the_smaller_system_has_the_same_solution(members: int, rows: int) -> None:
    rng = np.random.default_rng(rows)
    features_SME = rng.standard_normal((rows, members, INPUTS)).astype(np.float32)
    features_MSE = features_SME.transpose(1, 0, 2)  # as rows of a table lie
    residual_MS = rng.standard_normal((members, rows)).astype(np.float32)
    variance_M = np.linspace(0.5, 2.0, members, dtype=np.float32)
    precision_MEE = np.eye(INPUTS) * (0.5 / variance_M)[:, None, None]
    system_MEE = features_MSE.transpose(0, 2, 1).astype(np.float64) @ features_MSE + precision_MEE
    share_MSE = (np.linalg.inv(system_MEE)[:, None] @ features_MSE[..., None])[..., 0] * residual_MS[..., None]
    given = features_MSE.copy()
    np.testing.assert_allclose(ridge(features_MSE, residual_MS, variance_M), share_MSE.sum(axis=1), atol=1e-5)
    np.testing.assert_allclose(ridge_shares(features_MSE, residual_MS, variance_M), share_MSE, atol=1e-5)
    np.testing.assert_array_equal(features_MSE, given)
