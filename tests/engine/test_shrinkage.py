"""Whom a rate of one's own helps if ratings are noisy: shrinkage, in an exactly solvable model and with the engine.

Without noise (the paper's Lemmas 1 and 2) the best rate is the same for everybody.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.optimize import minimize_scalar

from paml.data.schema import Target
from paml.engine.adapt import RatePerUser, adapt, forward
from paml.engine.heads import HeadSettings, head_for
from paml.engine.inputs import LayerInput, Weights

share = st.floats(0.5, 0.99)

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
