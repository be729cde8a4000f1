"""Identities of a choice among all items: weights, steps, the closed form, and the outer loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import paml
from paml.engine.choice import ChoiceHead, LevelWeights
from paml.engine.layers import PersonalLayer
from paml.engine.softmax import NO_CANDIDATE
from paml.engine.solvers import GradientSteps, Solver
from paml.episodes.batches import RowBlock, TensorBatch
from paml.episodes.histories import Histories
from paml.errors import SettingsError
from paml.methods.learner import Adapted, Learner
from paml.methods.objectives import pooled_loss, query_loss
from paml.methods.registry import METHODS, find_method, fit_to_data
from paml.testing.learners import deviation, gradients, make_choice

HEAD = ChoiceHead(liked=4.0, unliked_weight=0.3)


def adapt(learner: Learner, batch: TensorBatch) -> Adapted:
    return learner.adapt(learner.embed(batch))


def all_outputs(learner: Learner, adapted: Adapted) -> Tensor:
    return learner.outputs_of_all(adapted, slice(None), None).squeeze(-1)


def losses(learner: Learner, batch: TensorBatch) -> Tensor:
    return learner.loss(adapt(learner, batch), batch.query)


def without_rows(batch: TensorBatch) -> TensorBatch:
    support = replace(batch.support, mask_BR=torch.zeros_like(batch.support.mask_BR))
    return replace(batch, support=support)


# The head.


def problem() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    out_BRK = torch.randn(3, 7, 1, generator=rng, dtype=torch.float64)
    return out_BRK, torch.rand(3, 7, generator=rng, dtype=torch.float64).round(decimals=1)


def test_gradient_and_curvature_of_the_head_are_those_of_autograd() -> None:
    out_BRK, k_BR = problem()
    point = out_BRK.clone().requires_grad_()
    (slope,) = torch.autograd.grad(HEAD.row_loss(point, k_BR).sum(), point)
    torch.testing.assert_close(HEAD.row_gradient(out_BRK, k_BR), slope)
    one_BR = torch.nn.functional.one_hot(torch.tensor([0, 3, 6]), 7).double()
    for b in range(3):
        hessian = torch.autograd.functional.hessian(
            lambda out_R, b=b: HEAD.row_loss(out_R.view(1, -1, 1), one_BR[b : b + 1]).sum(), out_BRK[b, :, 0]
        )
        torch.testing.assert_close(HEAD.row_curvature(out_BRK, None)[b], hessian.diagonal())


def test_a_constant_added_to_all_outputs_changes_nothing() -> None:
    out_BRK, k_BR = problem()
    for name in ("row_loss", "row_gradient", "row_curvature"):
        torch.testing.assert_close(getattr(HEAD, name)(out_BRK + 5, k_BR), getattr(HEAD, name)(out_BRK, k_BR))
    assert torch.equal(torch.argsort(HEAD.predict(out_BRK + 5)), torch.argsort(HEAD.predict(out_BRK)))


def test_weights_of_rows_to_be_predicted() -> None:
    y_BQ = torch.tensor([[1.0, 3.9, 4.0, 5.0]], dtype=torch.float64)
    assert HEAD.chosen_weight(y_BQ).tolist() == [[0.3, 0.3, 1.0, 1.0]]  # in double precision
    assert HEAD.chosen_weight(y_BQ.float()).dtype == torch.float32


def test_weights_of_known_levels_start_between_a_half_and_one_and_are_interpolated() -> None:
    weights = LevelWeights([1.0, 2.0, 3.0, 4.0, 5.0])
    y_BS = torch.tensor([[1.0, 3.0, 5.0, 4.5, 0.0, 9.0]])
    assert weights(y_BS)[0].tolist() == pytest.approx([0.5, 0.75, 1.0, 0.9375, 0.5, 1.0])
    clicks = LevelWeights([0.0, 1.0])
    assert clicks(torch.tensor([[0.0, 1.0]]))[0].tolist() == pytest.approx([0.5, 1.0])


# Gradient steps.


@pytest.mark.parametrize("method", METHODS)
def test_zero_steps_return_theta(method: str, world: paml.Dataset) -> None:
    learner, batch, _ = make_choice(world, method, inner_steps=0)
    adapted = adapt(learner, batch)
    x = learner.network.whole_input(adapted.embedded, slice(None), None)
    expected = x.project(learner.network.decision.theta()[0]) + adapted.embedded.offsets(x)
    torch.testing.assert_close(all_outputs(learner, adapted), expected.squeeze(-1))


@pytest.mark.parametrize("method", METHODS)
def test_nobody_is_moved_without_known_rows(method: str, world: paml.Dataset) -> None:
    learner, batch, _ = make_choice(world, method, inner_steps=3)
    still, _, _ = make_choice(world, method, inner_steps=0)
    unknown = without_rows(batch)
    torch.testing.assert_close(
        all_outputs(learner, adapt(learner, unknown)), all_outputs(still, adapt(still, unknown)), rtol=1e-12, atol=1e-12
    )
    loss = find_method(method).objective(make_choice(world, method)[2])(learner, unknown).value
    assert all(part.isfinite().all() for part in [loss, *gradients(loss, learner)])


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_rows_padding_and_other_users_do_not_matter(method: str, world: paml.Dataset) -> None:
    learner, batch, _ = make_choice(world, method, inner_steps=3)
    expected_B, support = losses(learner, batch), batch.support
    order = torch.randperm(support.y_BR.shape[1], generator=torch.Generator().manual_seed(0))
    mixed = RowBlock(support.index_BR[:, order], None, support.y_BR[:, order], support.mask_BR[:, order])
    torch.testing.assert_close(losses(learner, replace(batch, support=mixed)), expected_B)
    wider = [torch.cat([part, part[:, :2]], dim=1) for part in (support.index_BR, support.y_BR)]
    mask_BR = torch.cat([support.mask_BR, torch.zeros(len(expected_B), 2)], dim=1)
    padded = RowBlock(wider[0], None, wider[1], mask_BR)
    torch.testing.assert_close(losses(learner, replace(batch, support=padded)), expected_B)
    whole = all_outputs(learner, adapt(learner, batch))
    for b in range(len(expected_B)):
        adapted = adapt(learner, batch).of(slice(b, b + 1))
        torch.testing.assert_close(all_outputs(learner, adapted), whole[b : b + 1])


def test_without_a_pseudo_count_the_scale_of_weights_does_not_matter(world: paml.Dataset) -> None:
    """The loss is normalised by their sum: all half as large, or all rows twice, are the same."""
    learner, batch, _ = make_choice(world, "melu", inner_steps=3, pseudo_count=0.0)
    halved, _, _ = make_choice(world, "melu", inner_steps=3, pseudo_count=0.0)
    learner.solver.count_power.data.zero_()
    halved.solver.count_power.data.zero_()
    expected = all_outputs(learner, adapt(learner, batch))
    with torch.no_grad():
        halved.known_weights.log_weight_L -= np.log(2)
    torch.testing.assert_close(all_outputs(halved, adapt(halved, batch)), expected)
    support = batch.support
    twice = RowBlock(*(torch.cat([part, part], dim=1) if part is not None else None for part in vars(support).values()))
    # bias and prior depend on the number of rows, so only the last layer is compared
    moved = adapt(learner, batch).adaptation.layers[-1]
    embedded = learner.embed(batch)
    again = learner.adapt(replace(embedded, batch=replace(batch, support=twice))).adaptation.layers[-1]
    torch.testing.assert_close(again.rows_BDK, moved.rows_BDK)


def test_reg_paml_at_gamma_zero_is_paml(world: paml.Dataset) -> None:
    plain, batch, recipe = make_choice(world, "paml", inner_steps=2)
    regularised, _, other = make_choice(world, "reg_paml", inner_steps=2, gamma=0.0)
    left = find_method("paml").objective(recipe)(plain, batch).value
    right = find_method("reg_paml").objective(other)(regularised, batch).value
    assert deviation(gradients(left, plain), gradients(right, regularised)) == 0


def test_meta_sgd_starts_as_melu(world: paml.Dataset) -> None:
    melu, batch, _ = make_choice(world, "melu", inner_steps=3)
    meta_sgd, _, _ = make_choice(world, "meta_sgd", inner_steps=3)
    torch.testing.assert_close(losses(melu, batch), losses(meta_sgd, batch), rtol=1e-12, atol=1e-12)


def test_gradient_steps_lower_the_loss_of_the_known_rows(world: paml.Dataset) -> None:
    learner, batch, _ = make_choice(world, "melu", inner_steps=3)
    still, _, _ = make_choice(world, "melu", inner_steps=0)

    def known_loss(one: Learner) -> Tensor:
        weight_BN = torch.zeros(len(batch.user_B), len(batch.item_N), dtype=torch.float64)
        weight_BN.scatter_add_(1, batch.support.index_BR, one.known_weights(batch.support.y_BR) * batch.support.mask_BR)
        return HEAD.row_loss(all_outputs(one, adapt(one, batch)).unsqueeze(-1), weight_BN).sum(dim=1)

    with torch.no_grad():
        assert (known_loss(learner) < known_loss(still)).all()


# The closed form.


def slope_at_solution(learner: Learner, batch: TensorBatch) -> Tensor:
    """sum_j k_j z_j - n E z at the adapted weights: the slope of the log likelihood, (B, D)."""
    adapted = adapt(learner, batch)
    z_ND, p_BN = adapted.embedded.items.vectors_ND, torch.softmax(all_outputs(learner, adapted), dim=1)
    k_BS = learner.known_weights(batch.support.y_BR) * batch.support.mask_BR
    chosen_BD = (k_BS.unsqueeze(-1) * z_ND[batch.support.index_BR]).sum(dim=1)
    return chosen_BD - k_BS.sum(dim=1, keepdim=True) * (p_BN @ z_ND)


CALM = {"prior_from_profile": False, "prior_from_items": 0, "embedding_scale": 0.3, "field_scale": 0.0}


@torch.no_grad()
def test_a_wide_prior_and_many_steps_give_the_maximum_likelihood(world: paml.Dataset) -> None:
    settings = {**CALM, "item_embedding": 2, "rate_scale": 1e8, "users": 8}
    learner, batch, _ = make_choice(world, "ridge", **settings, inner_steps=400)
    few, _, _ = make_choice(world, "ridge", **settings, inner_steps=0)
    rows_B = batch.support.mask_BR.sum(dim=1)
    assert (rows_B >= 5).any()
    found_B, start_B = (slope_at_solution(one, batch).norm(dim=1)[rows_B >= 5] for one in (learner, few))
    assert (found_B < 1e-5).all()
    assert (start_B > 1e-2).all()


@torch.no_grad()
def test_a_narrow_prior_stays_at_theta(world: paml.Dataset) -> None:
    learner, batch, _ = make_choice(world, "ridge", rate_scale=1e-9, inner_steps=3)
    still, _, _ = make_choice(world, "ridge", inner_steps=0)
    torch.testing.assert_close(
        all_outputs(learner, adapt(learner, batch)), all_outputs(still, adapt(still, batch)), rtol=0, atol=1e-3
    )


@torch.no_grad()
def test_at_the_fixed_point_the_slope_is_what_the_prior_takes_back(world: paml.Dataset) -> None:
    """d / alpha = sum_j k_j (z_j - E z), the condition of the penalised maximum; alpha depends on the count."""
    learner, batch, _ = make_choice(world, "ridge", inner_steps=200)
    adapted = adapt(learner, batch)
    layer = adapted.adaptation.layers[-1]
    assert isinstance(layer, PersonalLayer)
    d_BD = (layer.rows_BDK - learner.network.decision.rows[-1]).squeeze(-1)
    k_BS = learner.known_weights(batch.support.y_BR) * batch.support.mask_BR
    alpha_B = adapted.rate.per_user(len(d_BD)) * (1 + k_BS.sum(dim=1)) ** learner.solver.count_power
    torch.testing.assert_close(d_BD / alpha_B.unsqueeze(-1), slope_at_solution(learner, batch))


@torch.no_grad()
@pytest.mark.parametrize("method", ["melu", "meta_sgd", "paml", "ridge"])
def test_the_shares_of_known_choices_sum_to_how_far_a_user_moved(method: str, world: paml.Dataset) -> None:
    for pseudo_count in (0.0, 2.0):
        learner, batch, _ = make_choice(world, method, users=1, inner_steps=3, pseudo_count=pseudo_count)
        adapted, support = adapt(learner, batch), batch.support
        weight_S = learner.known_weights(support.y_BR)[0] * support.mask_BR[0]
        vector_SD = adapted.embedded.items.vectors_ND[support.index_BR[0]]
        share_SD = learner.solver.choice_shares(adapted.adaptation, adapted.rate, weight_S, vector_SD)
        layer = adapted.adaptation.layers[-1]
        assert isinstance(layer, PersonalLayer)
        moved_D = (layer.rows_BDK[0] - learner.network.decision.rows[-1])[:, 0]
        assert moved_D.abs().max() > 1e-3
        torch.testing.assert_close(share_SD.sum(dim=0), moved_D)


# The outer loss.


def test_known_items_are_no_candidates_in_the_outer_loss(world: paml.Dataset) -> None:
    """Their biases may be anything, as long as nobody is adapted by them; asked for again, they do not count."""
    learner, batch, _ = make_choice(world, "melu", inner_steps=0, users=1)
    adapted = adapt(learner, batch)
    index_S = batch.support.index_BR[0][batch.support.mask_BR[0] > 0]
    bias_NK = adapted.embedded.items.bias_NK.clone()
    bias_NK[index_S] += 7
    raised = replace(
        adapted, embedded=replace(adapted.embedded, items=replace(adapted.embedded.items, bias_NK=bias_NK))
    )
    torch.testing.assert_close(learner.loss(raised, batch.query), learner.loss(adapted, batch.query))
    assert learner.loss_and_count(raised, [batch.query])[0] > learner.loss_and_count(adapted, [batch.query])[0]
    query = batch.query
    again = RowBlock(
        torch.cat([query.index_BR, index_S[:1].unsqueeze(0)], dim=1),
        None,
        *(
            torch.cat([part, part.new_full((1, 1), value)], dim=1)
            for part, value in ((query.y_BR, 5), (query.mask_BR, 1))
        ),
    )
    torch.testing.assert_close(learner.loss(adapted, again), learner.loss(adapted, batch.query))
    assert np.exp(NO_CANDIDATE) == 0


@pytest.mark.parametrize("method", ["melu", "transfer", "ridge"])
def test_users_who_liked_nothing_do_not_count(method: str, world: paml.Dataset) -> None:
    """With unliked_weight=0 and low ratings alone, the loss is 0 and its gradient finite."""
    learner, batch, recipe = make_choice(world, method, unliked_weight=0.0)
    low = [replace(block, y_BR=torch.ones_like(block.y_BR)) for block in (batch.support, batch.query)]
    disliked = replace(batch, support=low[0], query=low[1])
    loss = find_method(method).objective(recipe)(learner, disliked).value
    assert loss.item() == 0
    assert all(not gradient.any() for gradient in gradients(loss, learner))


def test_biases_start_at_popularity(world: paml.Dataset) -> None:
    """With zero vectors the ranking is by number of likes, where lower ratings do not count."""
    learner, batch, _ = make_choice(world, "melu", unliked_weight=0.0, field_scale=0.0, prior_from_items=0)
    fit_to_data([learner], world)
    learner.network.items.own.data[:, :3] = 0.0
    liked_I = Histories.of_training(world).liked_I
    out_BN = all_outputs(learner, adapt(learner, without_rows(batch)))
    known_I = torch.from_numpy(world.interacted_in_training())
    assert known_I.sum() > 50
    shifted = out_BN[0] - out_BN[0, int(torch.argmax(known_I.int()))]
    expected = torch.from_numpy(np.log1p(liked_I))
    torch.testing.assert_close(
        shifted[known_I].detach(),
        (expected - expected[int(torch.argmax(known_I.int()))])[known_I],
        rtol=1e-6,
        atol=1e-5,
    )


# Dropout of taste.


def test_dropout_repeats_for_the_same_batch_and_differs_for_another(world: paml.Dataset) -> None:
    learner, batch, _ = make_choice(world, "melu", taste_dropout=0.5, inner_steps=2)
    first, again = (query_loss(learner, batch).value for _ in range(2))
    assert first == again
    assert adapt(learner, batch).embedded.prior_BDK is not None
    torch.testing.assert_close(losses(learner, batch), losses(make_choice(world, "melu", inner_steps=2)[0], batch))
    rows = learner.adapt_in_training(learner.embed(batch), batch.user_B).adaptation.layers[-1].rows_BDK
    other = replace(batch, support=replace(batch.support, index_BR=batch.support.index_BR.roll(1, dims=0)))
    others = learner.adapt_in_training(learner.embed(other), batch.user_B).adaptation.layers[-1].rows_BDK
    assert not torch.equal(rows == 0, others == 0)


@torch.no_grad()
@pytest.mark.parametrize("method", ["melu", "transfer"])
def test_dropout_keeps_expectations(method: str, world: paml.Dataset) -> None:
    """Of outputs: user weights and their prior are dropped together, biases are kept."""
    learner, batch, _ = make_choice(world, method, taste_dropout=0.4, inner_steps=2)
    adapted, rng = adapt(learner, batch), torch.Generator().manual_seed(0)
    plain = all_outputs(learner, adapted)
    draws, total, square = 4000, torch.zeros_like(plain), torch.zeros_like(plain)
    support = batch.support
    for _ in range(draws):
        index_BR = torch.randint(80, support.index_BR.shape, generator=rng)
        drawn = replace(adapted.embedded, batch=replace(batch, support=replace(support, index_BR=index_BR)))
        found = all_outputs(learner, learner.with_dropout(replace(adapted, embedded=drawn)))
        total, square = total + found, square + found**2
    mean, deviation = total / draws, (square / draws - (total / draws) ** 2).sqrt()
    assert (deviation > 0).any()
    assert ((mean - plain).abs() <= 5 * deviation / draws**0.5 + 1e-9).all()


def test_dropout_leaves_out_weights_and_their_prior_together(world: paml.Dataset) -> None:
    """The prior's last row, which is added to all outputs, stays."""
    learner, batch, _ = make_choice(world, "melu", taste_dropout=0.5, inner_steps=2)
    plain, dropped = adapt(learner, batch), learner.adapt_in_training(learner.embed(batch), batch.user_B)
    prior_BDK, left_BDK = plain.embedded.prior_BDK, dropped.embedded.prior_BDK
    rows_BDK, kept_BDK = (one.adaptation.layers[-1].rows_BDK for one in (plain, dropped))
    gone = kept_BDK == 0
    assert 0 < gone.sum() < gone.numel()
    for whole, left in ((rows_BDK, kept_BDK), (prior_BDK[:, :-1], left_BDK[:, :-1])):
        torch.testing.assert_close(left, torch.where(gone, 0.0, 2 * whole))
    assert torch.equal(left_BDK[:, -1], prior_BDK[:, -1])


def test_pooled_training_drops_taste_too(world: paml.Dataset) -> None:
    learner, batch, _ = make_choice(world, "transfer", taste_dropout=0.5)
    plain, _, _ = make_choice(world, "transfer")
    assert pooled_loss(learner, batch).value != pooled_loss(plain, batch).value


def test_a_solver_without_choices_says_so(world: paml.Dataset) -> None:
    learner, batch, _ = make_choice(world, "melu")
    learner.solver = type("OnlyRatings", (Solver,), {"forward": GradientSteps.forward})()
    with pytest.raises(SettingsError, match=r"OnlyRatings knows no choices.*choice_part=false"):
        adapt(learner, batch)
