"""Heads: losses and predictions by hand, gradients and curvatures against autograd."""

import math

import pytest
import torch
from torch import Tensor

from paml.data.schema import Target
from paml.engine.heads import (
    ClassesHead,
    ClickHead,
    Head,
    HeadSettings,
    ValueHead,
    click_weight,
    head_for,
    on_scale,
    user_loss,
)
from paml.errors import SettingsError

RATING, HALF_STARS = Target(kind="rating", low=1, high=5), Target(kind="rating", low=0.5, high=5, step=0.5)
CLICK = Target(kind="click")
HEADS: dict[str, tuple[Head, list[float]]] = {
    "value": (ValueHead(), [1.0, 5.0, 3.0, 4.0, 2.0, 1.0]),
    "classes": (head_for(HeadSettings(head="classes"), HALF_STARS), [0.5, 5.0, 3.5, 1.0, 2.0, 4.5]),
    "click": (ClickHead(), [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]),
}


def rows(name: str) -> tuple[Head, Tensor, Tensor]:
    """A head, outputs of two users with three rows each, and targets."""
    head, y = HEADS[name]
    out_BRK = torch.randn(2, 3, head.outputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return head, out_BRK, torch.tensor(y, dtype=torch.float64).view(2, 3)


def test_losses_by_hand() -> None:
    out_11K, y = torch.tensor([[[1.5]]]), torch.tensor([[4.0]])
    assert ValueHead().row_loss(out_11K, y).item() == pytest.approx(6.25)
    logits = torch.tensor([[[0.0, math.log(3)], [0.0, math.log(3)]]])  # a click has probability 3/4
    entropy = ClickHead().row_loss(logits, torch.tensor([[1.0, 0.0]]))
    assert entropy.flatten().tolist() == pytest.approx([-0.9 * math.log(3 / 4), -0.1 * math.log(1 / 4)])
    assert ClickHead().predict(logits).flatten().tolist() == pytest.approx([3 / 4, 3 / 4])
    assert click_weight(torch.tensor([0.0, 1.0])).tolist() == pytest.approx([0.1, 0.9])
    levels = torch.tensor([[[1.0, 2.0, 3.0, 1.0, 1.0]]]).log()
    five = head_for(HeadSettings(head="classes"), RATING)
    assert five.row_loss(levels, torch.tensor([[3.0]])).item() == pytest.approx(-math.log(3 / 8))
    assert five.predict(levels).item() == pytest.approx(
        (1 + 4 + 9 + 4 + 5) / 8
    )  # the expected level, not the likeliest


@pytest.mark.parametrize("name", HEADS)
def test_gradients_and_curvatures_are_those_of_the_loss(name: str) -> None:
    head, out_BRK, y_BR = rows(name)
    out_BRK.requires_grad_()
    (expected_BRK,) = torch.autograd.grad(head.row_loss(out_BRK, y_BR).sum(), out_BRK)
    torch.testing.assert_close(head.row_gradient(out_BRK, y_BR), expected_BRK)
    hessian = torch.autograd.functional.hessian(lambda out: head.row_loss(out, y_BR).sum(), out_BRK.detach())
    second_BRKK = torch.einsum("brkbrl->brkl", hessian)
    trace_BR = second_BRKK.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    expected_BR = trace_BR if name == "classes" else second_BRKK[..., -1, -1]
    torch.testing.assert_close(head.row_curvature(out_BRK, y_BR), expected_BR)


def test_the_curvature_without_targets_is_expected_at_the_prediction() -> None:
    head, out_BRK, _ = rows("click")
    p_BR = head.predict(out_BRK)
    torch.testing.assert_close(head.row_curvature(out_BRK, None), (0.1 + 0.8 * p_BR) * p_BR * (1 - p_BR))
    for name in ("value", "classes"):
        head, out_BRK, y_BR = rows(name)
        assert torch.equal(head.row_curvature(out_BRK, None), head.row_curvature(out_BRK, y_BR))


def test_the_gradient_has_all_levels_even_if_only_low_ones_occur() -> None:
    head, out_BRK, _ = rows("classes")
    lowest_BR = torch.full((2, 3), 0.5, dtype=torch.float64)
    expected_BRK = out_BRK.softmax(dim=-1)
    expected_BRK[..., 0] -= 1
    torch.testing.assert_close(head.row_gradient(out_BRK, lowest_BR), expected_BRK)
    _, out_BRK, _ = rows("click")
    none_BR = torch.zeros(2, 3, dtype=torch.float64)
    expected_BRK = 0.1 * (out_BRK.softmax(dim=-1) - torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(ClickHead().row_gradient(out_BRK, none_BR), expected_BRK)


def test_every_level_has_its_own_output_and_targets_beyond_the_scale_count_as_its_ends() -> None:
    head, levels = head_for(HeadSettings(head="classes"), HALF_STARS), torch.tensor(HALF_STARS.levels)
    assert head.outputs == 10
    certain_1RK = 100 * torch.eye(10).unsqueeze(0)
    assert head.row_loss(certain_1RK, levels.unsqueeze(0)).abs().max() < 1e-6
    torch.testing.assert_close(head.predict(certain_1RK)[0], levels)
    beyond = torch.tensor([[0.0, 7.0]])
    assert head.row_loss(certain_1RK[:, [0, 9]], beyond).abs().max() < 1e-6


def test_initial_biases_predict_the_training_mean() -> None:
    assert ValueHead().initial_bias(3.2).tolist() == pytest.approx([3.2])
    assert ClassesHead((1.0, 2.0, 3.0)).initial_bias(3.0).tolist() == [0.0, 0.0, 0.0]
    for mean, rate in ((0.2, 0.2), (0.0, 1e-3), (1.0, 1 - 1e-3)):
        bias_K = ClickHead().initial_bias(mean)
        odds = 0.9 * rate / (0.1 * (1 - rate))  # of a click, under the weighted loss
        assert float(bias_K[1] - bias_K[0]) == pytest.approx(math.log(odds), rel=1e-4)
        assert bias_K.exp().tolist() == pytest.approx([0.1 * (1 - rate), 0.9 * rate], rel=1e-4)


@pytest.mark.parametrize(("low", "high"), [(1.0, 5.0), (-1.0, 1.0)])
def test_predictions_are_squashed_onto_the_scale(low: float, high: float) -> None:
    """Inside by less than the edge nothing changes; beyond, an exponential approach to the end of the scale."""
    edge = 0.01 * (high - low)
    out = torch.linspace(low - 2, high + 2, 301, dtype=torch.float64)
    over = high - edge * torch.exp(-(out - (high - edge)) / edge)
    under = low + edge * torch.exp((out - (low + edge)) / edge)
    expected = torch.where(out > high - edge, over, torch.where(out < low + edge, under, out))
    before = out.clone()
    torch.testing.assert_close(on_scale(out, low, high), expected)
    with torch.no_grad():  # only what lies beyond is computed
        torch.testing.assert_close(on_scale(out, low, high), expected)
        inside = out[(out > low + edge) & (out < high - edge)]
        assert torch.equal(on_scale(inside, low, high), inside)
    assert torch.equal(out, before)
    head = head_for(HeadSettings(on_scale=True), Target(kind="rating", low=low, high=high))
    torch.testing.assert_close(head.predict(out.view(1, -1, 1)), expected.unsqueeze(0))
    assert torch.equal(ValueHead().predict(out.view(1, -1, 1)), out.unsqueeze(0))


def test_the_head_that_settings_and_target_name() -> None:
    assert head_for(HeadSettings(), RATING) == ValueHead()
    assert head_for(HeadSettings(on_scale=True), RATING) == ValueHead((1.0, 5.0))
    assert head_for(HeadSettings(head="classes"), RATING) == ClassesHead((1.0, 2.0, 3.0, 4.0, 5.0))
    assert head_for(HeadSettings(), CLICK) == ClickHead() == head_for(HeadSettings(head="click"), CLICK)
    for name, target in (("click", RATING), ("value", CLICK), ("classes", CLICK)):
        with pytest.raises(SettingsError, match=f"head '{name}' does not fit a {target.kind} target"):
            head_for(HeadSettings(head=name), target)


def test_a_users_loss_is_the_mean_over_rows_that_count() -> None:
    row_loss_BR = torch.tensor([[1.0, 3.0, 100.0], [2.0, 100.0, 100.0], [100.0, 100.0, 100.0]])
    mask_BR = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert user_loss(row_loss_BR, mask_BR).tolist() == [2.0, 2.0, 0.0]
