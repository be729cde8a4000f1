"""The inner problem of each user: stepped (gradient steps, Eq. 1) or solved (the last layer, in closed form).

A method is a rate source, a meta-loss and one of these two. Solved, the rate is what it becomes at convergence: the
prior's variance alpha_i, which says how far the user's weights may lie from theta,

    w_i  =  theta + argmin_d  sum_j loss(x_j (theta + d), y_j) + |d|^2 / (2 alpha_i)

For squared error that is ridge regression, exact after one Newton step; for clicks it takes a few. A step is solved
among the features or among the support rows, whichever are fewer.

Legend: B users, S support rows, D inputs per row, C shared inputs, K outputs, F = D + 1 features of the last layer.
"""

import math

import torch
from torch import Tensor, nn

from paml.engine.adapt import Adaptation, Rate, Solution, Theta, adapt, forward
from paml.engine.heads import CurvedHead, Head
from paml.engine.layers import AnyInput, ItemInput, PersonalLayer, SharedLayer

MIN_VARIANCE = 1e-6
MIN_CURVATURE = 1e-12  # of a click that is as good as certain; its root has a finite slope


class Inner(nn.Module):
    """Adapts theta to the support sets of a batch."""

    steps: int

    def forward(
        self, theta: Theta, x: ItemInput, y_BS: Tensor, mask_BS: Tensor, rate: Rate, offset_BSK: Tensor | None
    ) -> Adaptation:
        """theta_i of every user; `offset_BSK` is added to the outputs and not adapted."""
        raise NotImplementedError


class GradientSteps(Inner):
    """`steps` gradient steps; the loss is sum / (n + c), c learned, if `pseudo_count` (c's start) is above 0.

    With c = 0 it is the paper's mean over the n support rows; with c > 0 few rows move a user less far than many.
    """

    def __init__(self, head: Head, steps: int, pseudo_count: float = 0.0, *, first_order: bool = False) -> None:
        super().__init__()
        self.head, self.steps, self.first_order = head, steps, first_order
        self.log_pseudo_count = nn.Parameter(torch.tensor(math.log(pseudo_count))) if pseudo_count else None

    def forward(
        self, theta: Theta, x: ItemInput, y_BS: Tensor, mask_BS: Tensor, rate: Rate, offset_BSK: Tensor | None
    ) -> Adaptation:
        """theta_i = theta - alpha_i dL_i/dtheta, again and again."""
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
            pseudo_count=None if self.log_pseudo_count is None else self.log_pseudo_count.exp(),
        )


class ClosedForm(Inner):
    """The last layer solved; the layers before it are shared by all users.

    The last layer's features are its inputs and a constant, whose size is learned: how much users differ in their
    level, against how much they differ in taste. Of several outputs only the last is moved (the log-odds of a click).
    """

    def __init__(self, head: CurvedHead, steps: int) -> None:
        """`steps` are Newton's; for squared error one is exact, and no more are taken."""
        super().__init__()
        self.head, self.steps = head, min(steps, 1) if head.quadratic else steps
        self.level = nn.Parameter(torch.tensor(0.5))

    def forward(
        self, theta: Theta, x: ItemInput, y_BS: Tensor, mask_BS: Tensor, rate: Rate, offset_BSK: Tensor | None
    ) -> Adaptation:
        """Newton's method on the user's penalised loss, started at theta."""
        assert isinstance(rate, Tensor), "a prior has one variance per user"
        layers = tuple(SharedLayer(weights) for weights in theta)
        out_BSK, inputs = forward(layers, x)
        out_BSK = out_BSK if offset_BSK is None else out_BSK + offset_BSK
        last = inputs[-1]
        features_BSF = torch.cat([last.x_BRD, self.level.expand(*mask_BS.shape, 1)], dim=-1) * mask_BS.unsqueeze(-1)
        variance_B11 = prior_variance(rate).view(-1, 1, 1)
        d_BF = solution = None
        for _ in range(self.steps):
            if d_BF is None:  # at theta nothing has moved
                # a view: gradients of slope and curvature add up before they reach the outputs, as in later steps
                shifted_BSK = out_BSK.view_as(out_BSK)
            else:
                moved_BS = (features_BSF @ d_BF.unsqueeze(-1)).squeeze(-1)
                shifted_BSK = _shifted(out_BSK, moved_BS)
            residual_BS = -self.head.row_gradient(shifted_BSK, y_BS)[..., -1]
            curvature_BS = self.head.row_curvature(shifted_BSK, y_BS)
            if d_BF is not None:
                residual_BS = residual_BS + curvature_BS * moved_BS
            d_BF = solve(features_BSF, curvature_BS, residual_BS.unsqueeze(-1), variance_B11).squeeze(-1)
            solution = Solution(features_BSF, curvature_BS, residual_BS, self.level)
        if d_BF is None:
            return Adaptation(layers)
        return Adaptation((*layers[:-1], _moved(layers[-1], last, d_BF, self.level)), solution=solution)


def prior_variance(rate: Tensor) -> Tensor:
    """alpha_i, kept above 0."""
    return rate.clamp(min=MIN_VARIANCE)


def solve(features_BSF: Tensor, curvature_BS: Tensor, right_BSN: Tensor, variance_B11: Tensor) -> Tensor:
    """H^-1 X^T r for H = X^T C X + 1 / alpha, X the features, C the curvatures; (B, F, N).

    Among features by H's Cholesky factor; among rows, if these are fewer, as alpha X^T (1 + C G)^-1 r with the products
    G = alpha X X^T, of which only the symmetric 1 + C^1/2 G C^1/2 is factorised (Woodbury).
    """
    B, S, F = features_BSF.shape
    if F <= S:
        bent_BSF = features_BSF * curvature_BS.unsqueeze(-1)
        prior_BF = (1 / variance_B11).view(B, 1).expand(-1, F)
        factor_BFF = torch.linalg.cholesky(bent_BSF.mT @ features_BSF + torch.diag_embed(prior_BF))
        return torch.cholesky_solve(features_BSF.mT @ right_BSN, factor_BFF)
    products_BSS = variance_B11 * (features_BSF @ features_BSF.mT)
    root_BS1 = curvature_BS.clamp(min=MIN_CURVATURE).sqrt().unsqueeze(-1)
    inner_BSS = root_BS1 * products_BSS * root_BS1.mT + torch.eye(S, dtype=root_BS1.dtype, device=root_BS1.device)
    explained_BSN = torch.cholesky_solve(root_BS1 * (products_BSS @ right_BSN), torch.linalg.cholesky(inner_BSS))
    return variance_B11 * (features_BSF.mT @ (right_BSN - root_BS1 * explained_BSN))


def _shifted(out_BSK: Tensor, moved_BS: Tensor) -> Tensor:
    """The outputs with the last one moved."""
    return torch.cat([out_BSK[..., :-1], (out_BSK[..., -1] + moved_BS).unsqueeze(-1)], dim=-1)


def _moved(layer: SharedLayer, x: AnyInput, d_BF: Tensor, level: Tensor) -> PersonalLayer:
    """The last layer with its last output's weights and bias moved."""
    rows_DK, shared_CK = layer.weights
    unmoved = rows_DK.shape[1] - 1  # outputs before the last
    rows_BDK = nn.functional.pad(d_BF[:, :-1].unsqueeze(-1), (unmoved, 0))
    bias_B1K = (level * d_BF[:, -1:]).unsqueeze(-1)
    shared_BCK = nn.functional.pad(bias_B1K, (unmoved, 0, x.shared_BC.shape[1] - 1, 0))  # the bias is the last
    return PersonalLayer(rows_DK + rows_BDK, shared_CK + shared_BCK)
