"""The paper's lemmas on the two-group problem, and the upper bound behind REG-PAML on the engine's own numbers.

L_i(theta) = (theta - x_i)^2: after a step theta_i - x_i = (1 - 2 alpha_i)(theta - x_i); the paper writes 1 + 2 alpha.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

import paml
from paml.engine.adapt import Adaptation
from paml.engine.layers import SharedLayer
from paml.testing.learners import make

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


def papers_rate(p1: float, alpha: float) -> float:
    """alpha_2 of the proof of Lemma 2 (App. A.1), with q_1, q_2 the densities p_1, p_2."""
    return ((2 * alpha + 1) * np.sqrt(p1 / (1 - p1)) - 1) / 2


def errors(p1: float, alpha: float, sign: int) -> tuple[float, float, float, float]:
    """Minor group's error and total loss with one rate, then with the paper's alpha_2; x = (0, 1).

    A step leaves (1 + sign 2 alpha)(theta - x): sign is 1 in the paper's algebra and -1 in truth.
    """
    found = []
    p, x = np.array([p1, 1 - p1]), np.array([0.0, 1.0])
    for minor_rate in (alpha, papers_rate(p1, alpha)):
        left_over = 1 + sign * 2 * np.array([alpha, minor_rate])
        weight = p * left_over**2
        error = (left_over * (np.sum(weight * x) / np.sum(weight) - x)) ** 2
        found += [error[1], np.sum(p * error)]
    return tuple(found)


@given(share, rate)
def test_lemma_2_with_the_papers_rate_fails_in_the_papers_own_algebra(p1: float, alpha: float) -> None:
    """Its alpha_2 moves theta to the middle, nearer to the minor group. But what a step leaves then grows by more:

    minor error (1 + 2 alpha)^2 p_1 / (4 p_2), before p_1^2; total (1 + 2 alpha)^2 p_1 / 2, before p_1 p_2.
    """
    p2 = 1 - p1
    minor, total, papers_minor, papers_total = errors(p1, alpha, sign=1)
    grown = (1 + 2 * alpha) ** 2
    assert (minor, total) == pytest.approx((grown * p1**2, grown * p1 * p2))
    assert (papers_minor, papers_total) == pytest.approx((grown * p1 / (4 * p2), grown * p1 / 2))
    assert papers_minor >= minor * (1 - 1e-9)  # equal only for groups of the same size
    assert papers_total >= total * (1 - 1e-9)
    if p1 > 0.51:
        assert papers_minor > minor
        assert papers_total > total


@given(share, rate)
def test_lemma_2_with_the_papers_rate_holds_for_groups_that_are_not_too_unequal(p1: float, alpha: float) -> None:
    """In the right algebra both claims hold if sqrt(p_1 / p_2) <= (3 - 2 alpha) / (1 + 2 alpha).

    Beyond that the total loss rises, and the minor group's error rises too, unless the step overshoots so far that
    theta lies next to the minor group: |1 - 2 alpha_2| >= (1 - 2 alpha) p_1 / p_2.
    """
    ratio, limit = np.sqrt(p1 / (1 - p1)), (3 - 2 * alpha) / (1 + 2 * alpha)
    assume(abs(ratio - limit) > 1e-6)
    minor, total, papers_minor, papers_total = errors(p1, alpha, sign=-1)
    assert (papers_total <= total * (1 + 1e-9)) == (ratio < limit)
    far = abs(1 - 2 * papers_rate(p1, alpha)) / ((1 - 2 * alpha) * p1 / (1 - p1))
    assume(abs(far - 1) > 1e-6)
    assert (papers_minor <= minor * (1 + 1e-9)) == (ratio < limit or far > 1)


def test_lemma_2_with_the_papers_rate_fails_for_a_small_minor_group() -> None:
    """19 users to 1 and alpha = 0: alpha_2 is 1.7, and the step overshoots; the paper's groups (65:35) are safe."""
    minor, total, papers_minor, papers_total = errors(0.95, 0.0, sign=-1)
    assert papers_rate(0.95, 0.0) == pytest.approx(1.679, abs=1e-3)
    assert (minor, papers_minor) == pytest.approx((0.9025, 3.329), abs=1e-3)
    assert (total, papers_total) == pytest.approx((0.0475, 0.2152), abs=1e-4)
    minor, total, papers_minor, papers_total = errors(0.65, 1e-3, sign=-1)
    assert papers_minor < minor
    assert papers_total < total


def bound_of(data: paml.Dataset, rate_scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Support losses of 32 users at theta and after the step, alpha |g|^2, and user embeddings; recipe `paper`."""
    sizes = {"embedding_size": 32, "hidden": (320, 192)}
    learner, batch, _ = make(data, "reg_paml", users=32, rate_scale=rate_scale, **sizes)
    with torch.no_grad():
        adapted = learner.adapt(learner.embed(batch))
        layers = tuple(SharedLayer(weights) for weights in learner.network.decision.theta())
        at_theta = learner.loss(replace(adapted, adaptation=Adaptation(layers)), batch.support)
        first_order = adapted.rate.per_user(32) * adapted.adaptation.gradient_norm()
        return at_theta, learner.loss(adapted, batch.support), first_order, adapted.embedded.h_BH


def apart(value_U: Tensor) -> Tensor:
    """|v_i - v_j| of all pairs i > j."""
    i, j = torch.tril_indices(len(value_U), len(value_U), offset=-1)
    return (value_U[i] - value_U[j]).abs()


def pair_sums(value_U: Tensor) -> Tensor:
    i, j = torch.tril_indices(len(value_U), len(value_U), offset=-1)
    return value_U[i] + value_U[j]


def test_the_upper_bound_holds_where_rates_are_the_papers(world: paml.Dataset) -> None:
    """|L_i(theta_i) - L_j(theta_j)| <= |L_i - L_j| + a_i |g_i|^2 + a_j |g_j|^2 for every pair, and so for their sum.

    To first order this is the triangle inequality. The rest of the Taylor series is at most 2 % of a |g|^2 here.
    """
    before, after, first_order, _ = bound_of(world, rate_scale=1e-3)
    remainder = after - (before - first_order)
    assert 0.005 < (remainder.abs() / first_order).max() < 0.02
    assert (apart(before - first_order) <= apart(before) + pair_sums(first_order) + 1e-12).all()
    assert (apart(after) <= apart(before) + pair_sums(first_order) + 1e-12).all()
    users = len(before)
    assert apart(after).sum() <= (users - 1) * first_order.sum() + apart(before).sum()


def test_the_upper_bound_fails_where_rates_are_large(world: paml.Dataset) -> None:
    """With rates around 1/4 the rest of the series is many times the first-order part, and decides."""
    before, after, first_order, _ = bound_of(world, rate_scale=0.5)
    remainder = after - (before - first_order)
    assert (remainder.abs() / first_order).median() > 10
    broken = apart(after) > apart(before) + pair_sums(first_order)
    assert broken.float().mean() > 0.9
    assert (apart(after) <= apart(before) + pair_sums(first_order) + pair_sums(remainder.abs()) + 1e-9).all()


def test_the_bounds_constant_does_not_follow_from_embeddings(world: paml.Dataset) -> None:
    """App. A.2 bounds |L_i - L_j| by kappa |h_i - h_j|: users with the same profile and other ratings have no kappa.

    The constant without kappa, |U| (|U| - 1) max |h|, is several times all that it bounds, so it says nothing.
    """
    before, after, _, h_UH = bound_of(world, rate_scale=1e-3)
    i, j = torch.tril_indices(len(h_UH), len(h_UH), offset=-1)
    same = (h_UH[i] == h_UH[j]).all(dim=1)
    assert same.any()
    assert apart(before)[same].max() > 0.1
    users = len(before)
    assert users * (users - 1) * h_UH.norm(dim=1).max() > 5 * apart(after).sum()
