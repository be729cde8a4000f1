"""Solvers: the closed form in features or in support rows, what each support row adds, and the prior implied."""

import pytest
import torch
from torch import Tensor

import paml
from paml.engine import layers
from paml.engine.adapt import Adaptation, RatePerParameter, RatePerUser, forward
from paml.engine.heads import ClassesHead, ClickHead, ValueHead
from paml.engine.inputs import Weights
from paml.engine.layers import SharedLayer
from paml.engine.newton import solve
from paml.engine.solvers import ClosedForm, GradientSteps, SolverSettings
from paml.errors import SettingsError
from paml.testing.learners import make


def problem(users: int, rows: int, features: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    features_BSF = torch.randn(users, rows, features, generator=rng, dtype=torch.float64)
    features_BSF[0, rows // 2 :] = 0.0  # padding
    curvature_BS = torch.rand(users, rows, generator=rng, dtype=torch.float64) + 0.1
    right_BS = torch.randn(users, rows, generator=rng, dtype=torch.float64)
    return features_BSF, curvature_BS, right_BS, torch.tensor([0.01, 1.0, 30.0][:users]).double().view(-1, 1, 1)


def own_variances(variance_B11: Tensor, features: int) -> Tensor:
    """One for every feature."""
    return variance_B11 * (1 + torch.arange(features, dtype=torch.float64))


SIZES = [(3, 7), (7, 3), (5, 5), (1, 4)]


@pytest.mark.parametrize("curved", [True, False])
@pytest.mark.parametrize(("rows", "features"), SIZES)
def test_the_normal_equations_hold(rows: int, features: int, curved: bool) -> None:
    """(X^T C X + 1 / V) d = X^T r, whether rows or features are fewer; without curvatures C is 1."""
    x_BSF, curvature_BS, right_BS, variance_B11 = problem(3, rows, features)
    for variance_B1F in (variance_B11, own_variances(variance_B11, features)):
        d_BF = solve(x_BSF, curvature_BS if curved else None, right_BS, variance_B1F)
        out_BS = (x_BSF @ d_BF.unsqueeze(-1)).squeeze(-1)
        left_BF = (x_BSF.mT @ (curvature_BS * out_BS if curved else out_BS).unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(left_BF + d_BF / variance_B1F[:, 0], (x_BSF.mT @ right_BS.unsqueeze(-1)).squeeze(-1))
        with torch.no_grad():
            assert torch.equal(solve(x_BSF, curvature_BS if curved else None, right_BS, variance_B1F), d_BF)


@pytest.mark.parametrize("curved", [True, False])
@pytest.mark.parametrize(("rows", "features"), [(3, 5), (5, 3)])
def test_gradients_agree_with_finite_differences(rows: int, features: int, curved: bool) -> None:
    x_BSF, curvature_BS, right_BS, variance_B11 = (part.requires_grad_() for part in problem(2, rows, features))
    for variance_B1F in (variance_B11, own_variances(variance_B11.detach(), features).requires_grad_()):
        if curved:
            assert torch.autograd.gradcheck(solve, (x_BSF, curvature_BS, right_BS, variance_B1F))
        else:
            assert torch.autograd.gradcheck(lambda x, *others: solve(x, None, *others), (x_BSF, right_BS, variance_B1F))


@pytest.mark.parametrize("curved", [True, False])
@pytest.mark.parametrize(("rows", "features", "variance"), [(5, 33, 100.0), (30, 129, 10.0), (129, 30, 10.0)])
def test_single_precision_is_enough_for_wide_priors(rows: int, features: int, variance: float, curved: bool) -> None:
    """With variances times squared norms of thousands, up to what is lost where most of a gradient is explained."""
    x_BSF, curvature_BS, right_BS, _ = problem(3, rows, features)
    curvature_BS[1, 1:3] = torch.tensor([0.0, 1e-5])  # all but certain clicks
    exact = [x_BSF, curvature_BS, right_BS, torch.full((3, 1, 1), variance, dtype=torch.float64)]
    found = []
    for dtype in (torch.float64, torch.float32):
        x, c, r, v = (part.to(dtype).requires_grad_() for part in exact)
        d_BF = solve(x, c if curved else None, r, v)
        loss = (d_BF * torch.linspace(-1, 1, features, dtype=dtype)).sum()
        found.append([d_BF.detach(), *torch.autograd.grad(loss, [v, x, r, *([c] if curved else [])])])
    for k, (right, single) in enumerate(zip(*found, strict=True)):
        assert (single - right).norm() < (1e-3 if k == 1 else 1e-5) * right.norm()


def test_a_certain_click_has_finite_gradients() -> None:
    x_BSF, _, right_BS, variance_B11 = problem(2, 2, 4)
    curvature_BS = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    d_BF = solve(x_BSF, curvature_BS, right_BS, variance_B11)
    torch.testing.assert_close(d_BF, variance_B11[:, 0] * (x_BSF.mT @ right_BS.unsqueeze(-1)).squeeze(-1))
    d_BF.sum().backward()
    assert curvature_BS.grad is not None
    assert curvature_BS.grad.isfinite().all()


STEPPED = [
    (method, head, steps) for method in ("melu", "meta_sgd", "paml") for head, steps in (("value", 1), ("click", 3))
]


@torch.no_grad()
@pytest.mark.parametrize("form", ["attention", "weights"])
@pytest.mark.parametrize(("method", "head", "steps"), [*STEPPED, ("ridge", "value", 1), ("ridge", "click", 3)])
def test_what_the_support_rows_added_sums_to_what_each_layer_moved(
    method: str,
    head: str,
    steps: int,
    form: str,
    world: paml.Dataset,
    click_world: paml.Dataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "attention_is_cheaper", lambda *_: form == "attention")
    data = click_world if head == "click" else world
    learner, batch, _ = make(data, method, users=1, head=head, inner_steps=steps)
    adapted = learner.adapt(learner.embed(batch))
    solver, theta = learner.solver, learner.network.decision.theta()
    _, inputs = forward(adapted.adaptation.layers, learner.network.first_input(adapted.embedded, batch.query))
    for k, (layer, weights, x) in enumerate(zip(adapted.adaptation.layers, theta, inputs, strict=True)):
        zero_SK = torch.zeros(batch.support.index_BR.shape[1], weights.rows_DK.shape[1], dtype=torch.float64)
        added_RSK = solver.attribution(adapted.adaptation, adapted.rate, k, x, zero_SK)
        assert added_RSK.shape == (batch.query.index_BR.shape[1], *zero_SK.shape)
        moved_RK = (layer.forward(x) - SharedLayer(weights).forward(x))[0]
        torch.testing.assert_close(added_RSK.sum(dim=1), moved_RK)
        assert (added_RSK != 0).any() == (method != "ridge" or k == len(theta) - 1)


@torch.no_grad()
def test_each_support_row_added_its_own_gradient(world: paml.Dataset) -> None:
    """After one step: the layer moved by the gradient of a single row."""
    for method in ("melu", "meta_sgd"):
        learner, batch, _ = make(world, method, users=1)
        adapted = learner.adapt(learner.embed(batch))
        x = learner.network.first_input(adapted.embedded, batch.query)
        weights, step = learner.network.decision.theta()[0], adapted.adaptation.steps[0]
        rows = batch.support.index_BR.shape[1]
        zero_SK = torch.zeros(rows, weights.rows_DK.shape[1], dtype=torch.float64)
        added_RSK = learner.solver.attribution(adapted.adaptation, adapted.rate, 0, x, zero_SK)
        for j in range(rows):
            single = step.gradients[0] * (torch.arange(rows) == j).view(1, -1, 1)
            alone = SharedLayer(weights).moved_by(step.inputs[0], 0.25 * single)
            torch.testing.assert_close(added_RSK[:, j], (alone.forward(x) - SharedLayer(weights).forward(x))[0])


@torch.no_grad()
def test_each_support_row_added_its_residual_in_closed_form(world: paml.Dataset) -> None:
    """(x H^-1 f_j) r_j with H = sum_j c f_j f_j^T + 1 / V, c = 2 for squared error; without steps nothing."""
    learner, batch, _ = make(world, "ridge", users=1)
    adapted = learner.adapt(learner.embed(batch))
    solution, last = adapted.adaptation.solution, len(adapted.adaptation.layers) - 1
    assert solution is not None
    _, inputs = forward(adapted.adaptation.layers, learner.network.first_input(adapted.embedded, batch.query))
    features_SF, x_RD = solution.features_BSF[0], inputs[-1].x_BRD[0]
    variance_F = adapted.rate.per_user(1).repeat(features_SF.shape[1])
    variance_F[-1] *= learner.solver.level**2
    hessian_FF = 2 * features_SF.T @ features_SF + (1 / variance_F).diag()
    query_RF = torch.cat([x_RD, torch.ones(len(x_RD), 1)], dim=1)
    expected_RS = query_RF @ torch.linalg.inv(hessian_FF) @ features_SF.T * solution.residual_BS[0]
    zero_SK = torch.zeros(len(features_SF), 1, dtype=torch.float64)
    added_RSK = learner.solver.attribution(adapted.adaptation, adapted.rate, last, inputs[-1], zero_SK)
    torch.testing.assert_close(added_RSK.squeeze(-1), expected_RS)
    none = Adaptation(adapted.adaptation.layers)
    for solver in (learner.solver, GradientSteps(ValueHead(), SolverSettings())):
        nothing_RSK = solver.attribution(none, adapted.rate, last, inputs[-1], zero_SK)
        assert nothing_RSK.shape == (len(x_RD), *zero_SK.shape)
        assert not nothing_RSK.any()


def test_priors_by_hand() -> None:
    """Variances: of gradient steps T alpha / (n + 1 + c), c the pseudo-count; in closed form alpha."""
    mask_BS = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    shared_BC = torch.tensor([[3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    rate = RatePerUser(torch.tensor([0.3, -0.2], dtype=torch.float64))
    plain = GradientSteps(ValueHead(), SolverSettings(inner_steps=2))
    sd_B11, level_B = plain.prior_sd(rate, mask_BS, shared_BC)
    assert sd_B11.shape == (2, 1, 1)
    assert sd_B11.flatten().tolist() == pytest.approx([(2 * 0.3 / 3) ** 0.5, 0.0])
    assert level_B.tolist() == pytest.approx([5 * (2 * 0.3 / 3) ** 0.5, 0.0])
    counted = GradientSteps(ValueHead(), SolverSettings(inner_steps=2, pseudo_count=4.0))
    assert counted.prior_sd(rate, mask_BS, shared_BC)[0][0].item() == pytest.approx((2 * 0.3 / 7) ** 0.5, rel=1e-6)
    rows_DK, shared_CK = (
        torch.tensor([[9.0, 8.0, 0.1], [9.0, 8.0, -0.2]]),
        torch.tensor([[9.0, 8.0, 0.5], [9.0, 8.0, 0.25]]),
    )
    per_weight = RatePerParameter([Weights(rows_DK.double(), shared_CK.double())])
    sd_B1D, level_B = plain.prior_sd(per_weight, mask_BS, shared_BC)
    assert sd_B1D.shape == (2, 1, 2)
    assert sd_B1D.flatten().tolist() == pytest.approx([(2 / 3 * 0.1) ** 0.5, 0.0, (2 * 0.1) ** 0.5, 0.0])
    assert level_B.tolist() == pytest.approx([(2 / 3 * (9 * 0.5 + 16 * 0.25)) ** 0.5, (2 * 0.25) ** 0.5])
    closed = ClosedForm(ValueHead(), SolverSettings())
    sd_B11, level_B = closed.prior_sd(rate, mask_BS, shared_BC)
    assert sd_B11.shape == (2, 1, 1)
    assert sd_B11.flatten().tolist() == pytest.approx([0.3**0.5, 1e-3])  # a variance is kept above 1e-6
    assert level_B.tolist() == pytest.approx([0.5 * 0.3**0.5, 0.5e-3])


def test_one_newton_step_is_enough_for_squared_error() -> None:
    three = SolverSettings(inner_steps=3)
    assert ClosedForm(ValueHead(), three).steps == 1
    assert ClosedForm(ValueHead(), SolverSettings(inner_steps=0)).steps == 0
    assert ClosedForm(ClickHead(), three).steps == 3
    with pytest.raises(SettingsError, match="no closed form"):
        ClosedForm(ClassesHead((1.0, 2.0)), three)


def test_rates_per_user_for_tables() -> None:
    weights = Weights(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 6.0], [0.0, 0.0]]))
    assert RatePerParameter([weights, weights]).per_user(3).tolist() == [2.0, 2.0, 2.0]
    assert RatePerUser(torch.tensor([0.5, 0.1])).per_user(2).tolist() == pytest.approx([0.5, 0.1])
