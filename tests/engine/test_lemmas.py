"""The paper's lemmas on the two-group problem, with corrected algebra, and the upper bound behind REG-PAML.

L_i(theta) = (theta - x_i)^2: after a step theta_i - x_i = (1 - 2 alpha_i)(theta - x_i); the paper writes 1 + 2 alpha.
"""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import minimize_scalar

share = st.floats(0.5, 0.99)
rate = st.floats(0.0, 0.45)
preference = st.tuples(st.floats(-3, 3), st.floats(0.1, 3)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def loss(theta: float, p: np.ndarray, x: np.ndarray, alpha: np.ndarray) -> float:
    adapted = theta - alpha * 2 * (theta - x)
    return float(np.sum(p * (adapted - x) ** 2))


def optimum(p: np.ndarray, x: np.ndarray, alpha: np.ndarray) -> float:
    weight = p * (1 - 2 * alpha) ** 2
    return float(np.sum(weight * x) / np.sum(weight))


@given(share, rate, rate, preference)
def test_optimum_in_closed_form(p1: float, a1: float, a2: float, pair: tuple[float, float]) -> None:
    p, x, alpha = np.array([p1, 1 - p1]), np.array(pair), np.array([a1, a2])
    found = minimize_scalar(lambda theta: loss(theta, p, x, alpha)).x
    assert optimum(p, x, alpha) == pytest.approx(found, abs=1e-4)


@given(share, rate, preference)
def test_lemma_1_one_rate_for_all_favours_the_major_group(p1: float, alpha: float, pair: tuple[float, float]) -> None:
    p, x, rates = np.array([p1, 1 - p1]), np.array(pair), np.full(2, alpha)
    theta = optimum(p, x, rates)
    error = ((1 - 2 * rates) * (theta - x)) ** 2
    assert error[0] <= error[1] + 1e-12


@given(share, rate, preference)
def test_lemma_2_its_own_rate_helps_the_minor_group_and_the_whole(
    p1: float, alpha: float, pair: tuple[float, float]
) -> None:
    """A larger rate for the minor group, here alpha_2 = (alpha + 1/2) / 2, lowers its error and the total loss."""
    p, x = np.array([p1, 1 - p1]), np.array(pair)
    same, own = np.full(2, alpha), np.array([alpha, (alpha + 0.5) / 2])
    theta_same, theta_own = optimum(p, x, same), optimum(p, x, own)
    minor_same = ((1 - 2 * same[1]) * (theta_same - x[1])) ** 2
    minor_own = ((1 - 2 * own[1]) * (theta_own - x[1])) ** 2
    assert minor_own <= minor_same + 1e-12
    assert loss(theta_own, p, x, own) <= loss(theta_same, p, x, same) + 1e-12


def test_upper_bound_behind_the_regulariser() -> None:
    """To first order |L_i(theta_i) - L_j(theta_j)| <= |L_i - L_j| + g_i^2 a_i + g_j^2 a_j; summed over pairs."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        users, width = rng.integers(2, 12), rng.integers(1, 6)
        base, gradient = rng.random(users) * 3, rng.normal(size=(users, width))
        alpha = rng.random(users) * 0.3
        norm = (gradient**2).sum(axis=1)
        adapted = base - alpha * norm  # Taylor: L(theta - a g) = L - a |g|^2
        left = sum(abs(adapted[i] - adapted[j]) for i in range(users) for j in range(i))
        constant = sum(abs(base[i] - base[j]) for i in range(users) for j in range(i))
        assert left <= (users - 1) * np.sum(norm * alpha) + constant + 1e-12
