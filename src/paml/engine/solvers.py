"""The inner problem of each user: gradient steps (Eq. 1), or the last layer in closed form.

A method is a rate source, a meta-loss and one of these two. In closed form the rate is what it becomes at convergence:
the prior's variance alpha_i, which says how far the user's weights may lie from theta,

    w_i  =  theta + argmin_d  sum_j loss(x_j (theta + d), y_j) + |d|^2 / (2 alpha_i)

For squared error that is ridge regression, exact after one Newton step (newton.py); for clicks it takes a few.

Legend: B users, S support rows, D inputs per row, C shared inputs, K outputs, F = D + 1 features of the last layer,
M members of an ensemble.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from paml.engine.adapt import (
    MIN_VARIANCE,
    Adaptation,
    ChoiceSolution,
    ChoiceSteps,
    Rate,
    Solution,
    Theta,
    adapt,
    divisor,
    forward,
)
from paml.engine.choice import Choices
from paml.engine.descent import descend
from paml.engine.heads import Head
from paml.engine.inputs import ItemInput, RowInput, Weights
from paml.engine.joint import Columns, JointSolver
from paml.engine.joint_solvers import JointClosedForm, JointSteps
from paml.engine.layers import PersonalLayer, SharedLayer
from paml.engine.newton import System, newton
from paml.errors import SettingsError
from paml.registry import Registry, callable_entry
from paml.settings import Settings


class SolverSettings(Settings):
    """How each user's problem is solved."""

    inner_steps: int = Field(1, ge=0, description="gradient steps on the support set; Newton steps for ridge")
    pseudo_count: float = Field(
        0.0, ge=0, description="initial c, then learned: the inner loss is a sum over n rows / (n + c); 0 for the mean"
    )
    first_order: bool = Field(False, description="treat inner gradients as constants in the outer step")


class Solver(nn.Module):
    """Adapts theta to the support sets of a batch; gives the prior that this implies, and each row's part in it."""

    steps: int

    @property
    def needs_features(self) -> bool:
        """Whether the last layer's inputs are needed with a constant, and as zeros where there is padding."""
        return False

    needs_spread = False
    """Whether a choice needs the covariance of all item vectors."""

    def forward(
        self, theta: Theta, x: ItemInput, y_BS: Tensor, mask_BS: Tensor, rate: Rate, offset_BSK: Tensor | None
    ) -> Adaptation:
        """theta_i of every user; `offset_BSK` is added to the outputs and not adapted."""
        raise NotImplementedError

    def choose(self, theta: Theta, choices: Choices, rate: Rate) -> Adaptation:
        """The same for choices among all items: the weights of the item vectors move."""
        raise SettingsError(
            f"the solver {type(self).__name__} knows no choices",
            remedy="train with choice_part=false, or give it `choose`",
        )

    def prior_sd(self, rate: Rate, mask_BS: Tensor, shared_BC: Tensor) -> tuple[Tensor, Tensor]:
        """The prior of the last layer's weights that adapting amounts to, before one more answer.

        Standard deviations of the weights of the rows' inputs, (B, 1, D) or (B, 1, 1), and of a user's level, (B).
        """
        raise NotImplementedError

    def attribution(self, adaptation: Adaptation, rate: Rate, k: int, x: RowInput, zero_SK: Tensor) -> Tensor:
        """x dW of the single adapted user as one term per support row, (R, S, K); dW is how far layer k moved.

        `zero_SK` holds a zero for every support row and output.
        """
        raise NotImplementedError

    def choice_shares(self, adaptation: Adaptation, rate: Rate, weight_S: Tensor, vector_SD: Tensor) -> Tensor:
        """How far each known choice moved the single adapted user's weights, (S, D); their sum is the whole way.

        `weight_S` are the weights k of the choices, `vector_SD` their items' vectors.
        """
        raise NotImplementedError

    @classmethod
    def joint(cls, solvers: Sequence[Any], columns: Columns) -> JointSolver:
        """The solvers of all members as one, for networks of one layer, with rows of these columns."""
        raise NotImplementedError

    @property
    def can_merge(self) -> bool:
        """Whether a network merged of many (methods/merge.py) adapts as they do."""
        return False

    def merge(self, solvers: Sequence[Any], scale_M: Tensor) -> None:
        """Become what many solvers are together; `scale_M` are their rates relative to the first one's."""
        raise NotImplementedError


class GradientSteps(Solver):
    """`steps` gradient steps; the loss is sum / (n + c), c learned, if `pseudo_count` (the initial c) is above 0.

    With c = 0 it is the paper's mean over the n support rows; with c > 0, few rows move a user less than many. For a
    choice among all items, whose n may be large, it is also multiplied by (1 + n)^p, p learned.
    """

    def __init__(self, head: Head, settings: SolverSettings) -> None:
        super().__init__()
        self.head, self.steps, self.first_order = head, settings.inner_steps, settings.first_order
        initial = settings.pseudo_count
        self.log_pseudo_count = nn.Parameter(torch.tensor(math.log(initial))) if initial else None
        self.count_power = nn.Parameter(torch.zeros(())) if head.over_items else None

    def forward(
        self, theta: Theta, x: ItemInput, y_BS: Tensor, mask_BS: Tensor, rate: Rate, offset_BSK: Tensor | None
    ) -> Adaptation:
        """theta_i = theta - alpha_i dL_i/dtheta, repeated `steps` times."""
        if self.needs_features and len(theta) == 1 and self.steps and torch.is_grad_enabled():
            return self._descend(theta[0], x, y_BS, mask_BS, rate, offset_BSK)
        return adapt(
            theta,
            x,
            y_BS,
            mask_BS,
            self.head,
            rate,
            steps=self.steps,
            first_order=self.first_order,
            offset_BSK=offset_BSK,
            pseudo_count=self._pseudo_count(),
        )

    @property
    def needs_features(self) -> bool:
        """In training, for a squared error."""
        return self.head.quadratic and not self.first_order

    def _descend(
        self, weights: Weights, x: ItemInput, y_BS: Tensor, mask_BS: Tensor, rate: Rate, offset_BSK: Tensor | None
    ) -> Adaptation:
        """The same for a squared error and a single layer, in fewer operations (descent.py); steps are not kept."""
        layer = SharedLayer(weights)
        out_BSK = layer.forward(x) if offset_BSK is None else layer.forward(x) + offset_BSK
        weight_BS = 2 * mask_BS / divisor(mask_BS.sum(dim=1, keepdim=True), self._pseudo_count())
        rates_BF = rate.of_features(x.shared_BC, len(weights.rows_DK))
        features_BSF = x.features(mask_BS)
        moved_BF, slope_BF = descend(features_BSF, out_BSK.squeeze(-1) - y_BS, weight_BS, rates_BF, self.steps)
        level_B = slope_BF[:, -1] ** 2 * (x.shared_BC**2).sum(dim=1)
        squared_B = (slope_BF[:, :-1] ** 2).sum(dim=1) + level_B
        return Adaptation((_moved(layer, x, moved_BF),), squared_gradient_B=squared_B)

    def choose(self, theta: Theta, choices: Choices, rate: Rate) -> Adaptation:
        """The gradient of - sum_j k_j log p_j is n E z - sum_j k_j z_j: every step is one expectation."""
        assert self.count_power is not None, "a head over items"
        slopes, means, moved_BD = [], [], theta[-1].rows_DK.new_zeros(len(choices.weights_BE), len(theta[-1].rows_DK))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.first_order):
            count_B1, chosen_BD = choices.count(), choices.chosen(moved_BD.shape[1])
            share_B1 = (1 + count_B1) ** self.count_power / divisor(count_B1, self._pseudo_count())
        for _ in range(self.steps):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.first_order):
                means.append(choices.expected(moved_BD))
                slopes.append(share_B1 * (count_B1 * means[-1] - chosen_BD))
            moved_BD = moved_BD - rate.applied(slopes[-1])
        if not slopes:
            return Adaptation(tuple(SharedLayer(weights) for weights in theta))
        squared_B = (slopes[0] ** 2).sum(dim=1)  # what a user's rows share has no effect on chances, and no gradient
        layers = (_shifted(theta[-1], moved_BD),)
        return Adaptation(layers, choice=ChoiceSteps(tuple(means)), squared_gradient_B=squared_B)

    def _pseudo_count(self) -> Tensor | None:
        """c"""
        return None if self.log_pseudo_count is None else self.log_pseudo_count.exp()

    def prior_sd(self, rate: Rate, mask_BS: Tensor, shared_BC: Tensor) -> tuple[Tensor, Tensor]:
        """T steps of rate alpha on a sum / (n + c): a variance of T alpha / (n + c), where n counts the next answer.

        For a choice among all items, times (1 + n)^p.
        """
        count_B = mask_BS.sum(dim=1) + 1
        steps_B = self.steps / (count_B if self.log_pseudo_count is None else count_B + self.log_pseudo_count.exp())
        steps_B = steps_B if self.count_power is None else steps_B * (1 + count_B) ** self.count_power
        return rate.prior_sd(steps_B, shared_BC)

    def attribution(self, adaptation: Adaptation, rate: Rate, k: int, x: RowInput, zero_SK: Tensor) -> Tensor:
        """- alpha sum over steps of (x x_j) D_j, for every support row j."""
        assert adaptation.squared_gradient_B is None, "adapted as in training, where steps are not kept"
        total_RSK = zero_SK.expand(x.x_BRD.shape[1], *zero_SK.shape)
        for step in adaptation.steps:
            total_RSK = total_RSK - rate.attention(k, x, step.inputs[k]) * step.gradients[k][0]
        return total_RSK

    def choice_shares(self, adaptation: Adaptation, rate: Rate, weight_S: Tensor, vector_SD: Tensor) -> Tensor:
        """alpha k_s (z_s - E z) / (n + c) of every step, E the expectation under the chances before it."""
        count, steps = weight_S.sum(), adaptation.choice
        assert self.count_power is not None and isinstance(steps, ChoiceSteps), "steps of a choice"  # noqa: PT018
        share_S1 = weight_S.unsqueeze(-1) / divisor(count, self._pseudo_count()) * (1 + count) ** self.count_power
        moved_SSD = torch.stack([vector_SD - mean_1D for mean_1D in steps.means])
        return rate.applied(share_S1 * moved_SSD.sum(dim=0))

    @property
    def can_merge(self) -> bool:
        """For a choice: what all rows share has no effect there, so only the weights of item vectors move."""
        return self.head.over_items

    def merge(self, solvers: Sequence["GradientSteps"], scale_M: Tensor) -> None:
        """Means of c and p."""
        counts = [one.log_pseudo_count.exp() for one in solvers if one.log_pseudo_count is not None]
        if self.log_pseudo_count is not None:
            self.log_pseudo_count.copy_(torch.stack(counts).mean().log())
        _merge_powers(self, solvers)

    @classmethod
    def joint(cls, solvers: Sequence["GradientSteps"], columns: Columns) -> JointSteps:
        """As many steps, each member with its own c and p."""
        pseudo_counts = [one.log_pseudo_count.exp() for one in solvers if one.log_pseudo_count is not None]
        powers = [one.count_power for one in solvers if one.count_power is not None]
        return JointSteps(
            solvers[0].head,
            solvers[0].steps,
            torch.stack(pseudo_counts).unsqueeze(-1) if pseudo_counts else None,
            torch.stack([*powers]).unsqueeze(-1) if powers else None,
        )


class ClosedForm(Solver):
    """The last layer in closed form; the layers before it are shared by all users.

    The last layer's features are its inputs and the constant 1, whose prior is learned: how much users differ in their
    level, relative to their taste. Of several outputs only the last is moved (the log-odds of a click).
    """

    needs_features = needs_spread = True

    def __init__(self, head: Head, settings: SolverSettings) -> None:
        """Steps are Newton steps; for squared error one is exact, and no more are taken."""
        if not head.has_closed_form:
            raise SettingsError("a softmax over levels has no closed form", remedy="use head=value")
        super().__init__()
        self.head, self.steps = head, min(settings.inner_steps, 1) if head.quadratic else settings.inner_steps
        self.level = nn.Parameter(torch.tensor(0.5))
        self.count_power = nn.Parameter(torch.zeros(())) if head.over_items else None

    def forward(
        self, theta: Theta, x: ItemInput, y_BS: Tensor, mask_BS: Tensor, rate: Rate, offset_BSK: Tensor | None
    ) -> Adaptation:
        """Newton's method on the user's penalised loss, started at theta."""
        layers = tuple(SharedLayer(weights) for weights in theta)
        out_BSK, inputs = forward(layers, x)
        out_BSK = out_BSK if offset_BSK is None else out_BSK + offset_BSK
        last = inputs[-1]
        features_BSF = last.features(mask_BS)
        relative_F = nn.functional.pad((self.level**2).view(1), (features_BSF.shape[2] - 1, 0), value=1.0)
        variance_B1F = rate.prior_variance().view(-1, 1, 1) * relative_F.clamp(min=MIN_VARIANCE)
        found = newton(features_BSF, out_BSK, y_BS, self.head, variance_B1F, self.steps)
        if found is None:
            return Adaptation(layers)
        solution = Solution(features_BSF, found.curvature_BS, found.residual_BS, variance_B1F)
        return Adaptation((*layers[:-1], _moved(layers[-1], last, found.d_BF)), solution=solution)

    def choose(self, theta: Theta, choices: Choices, rate: Rate) -> Adaptation:
        """Ridge regression with the Gram matrix of all items z.

        The Hessian of a softmax is the covariance of the item vectors under its chances. With the chances that
        popularity gives, it is the same matrix for all users, computed once:

            d  =  (n Cov(z) + 1 / alpha)^-1  sum_j k_j (z_j - E z)      over the n = sum_j k_j choices j

        where the expectation E is that of the user's own chances. Further steps repeat this from the new chances. With
        few choices the prior may be narrower: alpha is multiplied by (1 + n)^c, c learned.
        """
        spread_DD = choices.spread_DD
        assert spread_DD is not None and self.count_power is not None, "a head over items"  # noqa: PT018
        count_B1 = choices.count()
        variance_B1 = rate.prior_variance().unsqueeze(-1) * (1 + count_B1) ** self.count_power
        prior_BD = (1 / variance_B1).expand(-1, len(spread_DD))
        factor_BDD = torch.linalg.cholesky(count_B1.unsqueeze(-1) * spread_DD + torch.diag_embed(prior_BD))
        chosen_BD = choices.chosen(len(spread_DD))
        d_BD, means = torch.zeros_like(chosen_BD), []
        for _ in range(self.steps):
            mean_BD = choices.expected(d_BD)
            right_BD = chosen_BD - count_B1 * mean_BD - d_BD / variance_B1
            d_BD = d_BD + torch.cholesky_solve(right_BD.unsqueeze(-1), factor_BDD).squeeze(-1)
            means.append(mean_BD)
        return Adaptation((_shifted(theta[-1], d_BD),), choice=ChoiceSolution(factor_BDD, variance_B1, tuple(means)))

    def prior_sd(self, rate: Rate, mask_BS: Tensor, shared_BC: Tensor) -> tuple[Tensor, Tensor]:
        """sqrt(alpha), that of the level scaled; for a choice among all items, of alpha (1 + n)^c."""
        variance_B = rate.prior_variance()
        if self.count_power is not None:
            variance_B = variance_B * (2 + mask_BS.sum(dim=1)) ** self.count_power
        sd_B = variance_B.sqrt()
        return sd_B.view(-1, 1, 1), sd_B * self.level

    def attribution(self, adaptation: Adaptation, rate: Rate, k: int, x: RowInput, zero_SK: Tensor) -> Tensor:
        """(x H^-1 f_j) r_j of the last layer, for every support row j; outputs before the last are not moved."""
        total_RSK, solution = zero_SK.expand(x.x_BRD.shape[1], *zero_SK.shape), adaptation.solution
        if solution is None or k < len(adaptation.layers) - 1:
            return total_RSK
        x_RD = x.x_BRD[0]
        feature_RF = torch.cat([x_RD, x_RD.new_ones(len(x_RD), 1)], dim=1)
        residual_1SS = torch.diag_embed(solution.residual_BS)  # each row's residual by itself
        key_1FS, _ = System.of(solution.features_BSF, solution.curvature_BS, solution.variance_B1F).solve(residual_1SS)
        last_RS1 = (feature_RF @ key_1FS[0]).unsqueeze(-1)
        return torch.cat([total_RSK[..., 1:], last_RS1], dim=-1)

    def choice_shares(self, adaptation: Adaptation, rate: Rate, weight_S: Tensor, vector_SD: Tensor) -> Tensor:
        """Each step is linear in the choices: a_s + H^-1 (k_s (z_s - E z) - a_s / alpha)."""
        solution, moved_SD = adaptation.choice, torch.zeros_like(vector_SD)
        assert isinstance(solution, ChoiceSolution), "a choice in closed form"
        for mean_BD in solution.means:
            right_SD = weight_S.unsqueeze(-1) * (vector_SD - mean_BD) - moved_SD / solution.variance_B1
            moved_SD = moved_SD + torch.cholesky_solve(right_SD.mT, solution.factor_BDD[0]).mT
        return moved_SD

    @property
    def can_merge(self) -> bool:
        """Always."""
        return True

    def merge(self, solvers: Sequence["ClosedForm"], scale_M: Tensor) -> None:
        """alpha level^2 of the merged one is the mean of theirs."""
        level_M = torch.stack([*(one.level for one in solvers)])
        self.level.copy_((scale_M * level_M**2).mean().sqrt())
        _merge_powers(self, solvers)

    @classmethod
    def joint(cls, solvers: Sequence["ClosedForm"], columns: Columns) -> JointClosedForm:
        """As many steps, each member with its own level and power."""
        powers = [one.count_power for one in solvers if one.count_power is not None]
        return JointClosedForm(
            solvers[0].head,
            solvers[0].steps,
            columns.scales(torch.stack([one.level for one in solvers])),
            torch.stack([*powers]).unsqueeze(-1) if powers else None,
        )


def _merge_powers(into: GradientSteps | ClosedForm, solvers: Sequence[GradientSteps | ClosedForm]) -> None:
    """The mean of p, if a choice is adapted to."""
    powers = [one.count_power for one in solvers if one.count_power is not None]
    if into.count_power is not None:
        into.count_power.copy_(torch.stack([*powers]).mean())


def _shifted(weights: Weights, moved_BD: Tensor) -> PersonalLayer:
    """A layer of one output with the weights of the rows' inputs moved."""
    rows_DK, shared_CK = weights
    return PersonalLayer(rows_DK + moved_BD.unsqueeze(-1), shared_CK.expand(len(moved_BD), -1, -1))


def _moved(layer: SharedLayer, x: RowInput, d_BF: Tensor) -> PersonalLayer:
    """The last layer with its last output's weights and bias moved."""
    rows_DK, shared_CK = layer.weights
    unmoved = rows_DK.shape[1] - 1  # outputs before the last
    rows_BDK = nn.functional.pad(d_BF[:, :-1].unsqueeze(-1), (unmoved, 0))
    shared_BCK = nn.functional.pad(
        d_BF[:, -1:].unsqueeze(-1), (unmoved, 0, x.shared_BC.shape[1] - 1, 0)
    )  # the bias comes last
    return PersonalLayer(rows_DK + rows_BDK, shared_CK + shared_BCK)


SolverMaker = Callable[[Head, SolverSettings], Solver]
SOLVERS: dict[str, SolverMaker] = {"gradient": GradientSteps, "closed_form": ClosedForm}
"""Solvers, by the names that methods use."""
SOLVER_REGISTRY: Registry[SolverMaker] = Registry("solver", SOLVERS, callable_entry)
