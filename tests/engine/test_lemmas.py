"""The paper's lemmas on the two-group problem, with corrected algebra, and the upper bound behind REG-PAML;
and whom a rate of one's own helps if ratings are noisy.

L_i(theta) = (theta - x_i)^2: after a step theta_i - x_i = (1 - 2 alpha_i)(theta - x_i); the paper writes 1 + 2 alpha.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.optimize import minimize_scalar

from paml.data.schema import Target
from paml.engine.adapt import RatePerUser, adapt, forward
from paml.engine.heads import HeadSettings, head_for
from paml.engine.layers import LayerInput, Weights

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


# Noisy ratings. User i of group g likes x_i = m_g + a personal part of variance v_g, and gives n ratings x_i + noise of
# variance c n. One step with s = 2 alpha from theta_g (= m_g: a network that reads profiles learns it) leaves
# E (theta_i - x_i)^2 = (1 - s)^2 v_g + s^2 c, smallest at s_g = v_g / (v_g + c), where it is v_g c / (v_g + c).


def risk(s: float, v: float, c: float) -> float:
    """Expected squared error after the step, above the noise of the rating to be predicted."""
    return (1 - s) ** 2 * v + s**2 * c


def best_risk(v: float, c: float) -> float:
    return v * c / (v + c)


def gain(p: np.ndarray, v: np.ndarray, c: float) -> float:
    """What the best rate per group gains over the best rate for all: a Jensen gap of v -> v c / (v + c)."""
    return best_risk(float(p @ v), c) - float(p @ [best_risk(each, c) for each in v])


variance = st.floats(0.01, 4)


@given(variance, variance)
def test_best_rate_shrinks_by_what_is_personal_against_what_is_noise(v: float, c: float) -> None:
    found = minimize_scalar(lambda s: risk(s, v, c))
    assert v / (v + c) == pytest.approx(found.x, abs=1e-4)
    assert best_risk(v, c) == pytest.approx(found.fun, rel=1e-6)


@given(share, variance, variance, variance)
def test_gain_of_group_rates_is_a_jensen_gap(p1: float, v1: float, v2: float, c: float) -> None:
    p, v = np.array([p1, 1 - p1]), np.array([v1, v2])
    one = minimize_scalar(lambda s: float(p @ [risk(s, each, c) for each in v])).fun
    own = sum(p[k] * minimize_scalar(lambda s, k=k: risk(s, v[k], c)).fun for k in range(2))
    assert gain(p, v, c) == pytest.approx(one - own, abs=1e-6)
    assert gain(p, v, c) >= -1e-12
    assert gain(p, np.array([v1, v1]), c) == pytest.approx(0, abs=1e-12)  # nobody gains where all are as personal
    assert gain(p, v, 1e-9) == pytest.approx(0, abs=1e-8)  # nor without noise: 1/2 is the best rate for everyone


def test_own_rates_gain_what_the_theory_says_in_the_engine() -> None:
    """Two groups without any difference in their means; the network is one constant, adapted to four ratings each."""
    rng, users, n, c = np.random.default_rng(0), 200_000, 4, 0.25
    group = np.arange(users) % 4 == 0  # a quarter are minor users, whose personal part has 16 times the variance
    v = np.where(group, 1.6, 0.1)
    x = rng.normal(size=users) * np.sqrt(v)
    y_BS = torch.from_numpy(x[:, None] + rng.normal(size=(users, n)) * np.sqrt(c * n))
    p, by_group = np.array([0.75, 0.25]), np.array([0.1, 1.6])
    mean = float(p @ by_group)
    same = adapted_constant(np.full(users, mean / (mean + c)), y_BS)
    own = adapted_constant(v / (v + c), y_BS)
    gained = np.mean((same - x) ** 2) - np.mean((own - x) ** 2)
    assert gained == pytest.approx(gain(p, by_group, c), rel=0.05)
    for minor in (False, True):
        risky = np.mean((own - x)[group == minor] ** 2)
        assert risky == pytest.approx(best_risk(by_group[int(minor)], c), rel=0.03)


def adapted_constant(s_B: np.ndarray, y_BS: torch.Tensor) -> np.ndarray:
    """theta = 0 after one step of `adapt` with alpha = s / 2 on the squared error."""
    users, rows = y_BS.shape
    theta = [Weights(torch.zeros(0, 1, dtype=torch.double), torch.zeros(1, 1, dtype=torch.double))]
    x = LayerInput(torch.zeros(users, rows, 0, dtype=torch.double), torch.ones(users, 1, dtype=torch.double))
    head = head_for(HeadSettings(), Target(kind="rating", low=1, high=5))
    found = adapt(theta, x, y_BS, torch.ones_like(y_BS), head, RatePerUser(torch.from_numpy(s_B / 2)))
    return forward(found.layers, x)[0][:, 0, 0].numpy()
