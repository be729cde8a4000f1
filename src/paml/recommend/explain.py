"""Why an item is scored as it is: how far each support rating moved its score, in the engine's own terms.

A gradient step is attention over the support set: it moves a layer's outputs by

    x dW  =  - alpha sum_j (x x_j) D_j

one term per support row j. In closed form, the last layer moves by sum_j (x H^-1 f_j) r_j, with the residual r_j of the
row. Between layers, a change passes a ReLU with the slope of its secant between theta's value and the adapted one; the
head likewise. The choice of items moves the user prior (user_prior.py), which is a sum over rows, too. So the effects
of all rows sum exactly to

    score with the ratings  -  score of the same profile without any

For one step, and for the closed form with squared error, an effect is due to the row's own error at theta. With
further steps, a row's errors depend on what the other rows have explained so far: an effect is then the sum of the
row's own contributions along the way, not what would change if the row were removed.

A choice among all items moves by the vectors that each known row added to the user's weights. Its score is a log
chance: what a row adds to one item, less what it adds to all items on average, weighted by their chances on the way.

A plan (plan.py) knows how far each row moved the weights of all members (`Solo.shares`), and the rest follows from it.

Legend: M members, R rows asked about, S support rows, I all items, D inputs, E entries of a plan's row, C
shared inputs, K outputs, F last layer's features; one user.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paml.engine.adapt import forward
from paml.engine.heads import Head
from paml.engine.layers import SharedLayer
from paml.episodes.batches import QueryBlock, SupportBatch
from paml.methods.learner import Adapted, Learner
from paml.recommend.preference import Preference, link_weights, profile_share, rating_weight
from paml.recommend.requests import EncodedUser
from paml.recommend.solo import Solo

POINTS = 8  # between the old and the new outputs, at which the head's slope is taken


@dataclass(frozen=True)
class Reason:
    """A rating, and what it added to a score."""

    item: str
    title: str
    value: float
    effect: float


def effects_on_rating(parts: Sequence[tuple[Learner, Adapted]], block: QueryBlock) -> Tensor:
    """What each support row of the single user, adapted by each member, added to predictions of the block, (R, S)."""
    head = parts[0][0].head
    effect_RS = torch.stack([_effects_on_member(learner, adapted, block) for learner, adapted in parts]).mean(dim=0)
    after = [head.predict(learner.outputs(adapted, block))[0] for learner, adapted in parts]
    after_R = torch.stack(after).mean(dim=0)
    return effect_RS * _secant(head.finish, after_R - effect_RS.sum(dim=1), after_R).unsqueeze(1)


def _effects_on_member(learner: Learner, adapted: Adapted, block: QueryBlock) -> Tensor:
    """The same for one member, before predictions are finished."""
    embedded = adapted.embedded
    x = learner.network.first_input(embedded, block)
    theta, layers = learner.network.decision.theta(), adapted.adaptation.layers
    old = [SharedLayer(weights) for weights in theta]
    after_1RK, inputs = forward(layers, x)
    before_1RK, old_inputs = forward(old, x)
    support = embedded.batch.support
    zeros_SK = [weights.rows_DK.new_zeros(support.index_BR.shape[1], weights.rows_DK.shape[1]) for weights in theta]
    effect_RSK = learner.solver.attribution(adapted.adaptation, adapted.rate, 0, x, zeros_SK[0])
    for k in range(1, len(layers)):
        old_RD, new_RD = (
            layer.forward(at)[0] for layer, at in ((old[k - 1], old_inputs[k - 1]), (layers[k - 1], inputs[k - 1]))
        )
        passed_RSD = effect_RSK * _secant_of_relu(old_RD, new_RD).unsqueeze(1)
        added_RSK = learner.solver.attribution(adapted.adaptation, adapted.rate, k, inputs[k], zeros_SK[k])
        effect_RSK = passed_RSD @ theta[k].rows_DK + added_RSK
    offset_1RK = embedded.offsets(x)
    if offset_1RK is not None:
        before_1RK, after_1RK = before_1RK + offset_1RK, after_1RK + offset_1RK
    choice_1SDK = learner.network.user_prior.by_row(embedded.items.choice_NG, support.index_BR, support.mask_BR)
    if choice_1SDK is not None:
        item_RD = x.x_BRD[0][:, : choice_1SDK.shape[2] - 1]
        chosen_RSK = torch.einsum("rd,sdk->rsk", item_RD, choice_1SDK[0, :, :-1]) + choice_1SDK[0, :, -1]
        effect_RSK, before_1RK = effect_RSK + chosen_RSK, before_1RK - chosen_RSK.sum(dim=1)
    slope_RK = _secant_of_head(learner.head, before_1RK[0], after_1RK[0])
    return torch.einsum("rsk,rk->rs", effect_RSK, slope_RK)


def effects_on_choice(parts: Sequence[tuple[Learner, Adapted]], index_R: Tensor) -> Tensor:
    """What each support row of the single user, adapted by each member, added to log chances of some items, (R, S).

    Chances are those of the members' mean outputs.
    """
    added_IS = torch.stack([_added_to_outputs(learner, adapted) for learner, adapted in parts]).mean(dim=0)
    after = [learner.outputs_of_all(adapted, slice(None), None)[0, :, -1] for learner, adapted in parts]
    whole_I = added_IS.sum(dim=1)
    before_I = torch.stack(after).mean(dim=0) - whole_I
    return added_IS[index_R] - _added_to_all(before_I, whole_I, lambda chance_I: chance_I @ added_IS)


def planned_effects_on_rating(solo: Solo, user: EncodedUser, weights_ME: np.ndarray, index_R: Tensor) -> Tensor:
    """`effects_on_rating` for a user of a plan, all members at once, (R, S)."""
    after_MR, moved_MRS = _moved_outputs(solo, solo.shares(user, weights_ME), weights_ME, index_R)
    before_MR = after_MR - moved_MRS.sum(dim=2)
    slope_MR = _secant(lambda out_MR: solo.head.predict(out_MR.unsqueeze(-1)), before_MR, after_MR)
    return (moved_MRS * slope_MR.unsqueeze(-1)).mean(dim=0)


def planned_effects_on_choice(solo: Solo, user: EncodedUser, weights_ME: np.ndarray, index_R: Tensor) -> Tensor:
    """`effects_on_choice` for a user of a plan, all members at once, (R, S)."""
    share_MSE = solo.shares(user, weights_ME)
    _, moved_MRS = _moved_outputs(solo, share_MSE, weights_ME, index_R)
    before_ME = weights_ME - share_MSE.sum(axis=1)
    before_I, after_I = (torch.from_numpy(solo.score_all(one[:, None])[0]) for one in (before_ME, weights_ME))

    def added(chance_I: Tensor) -> Tensor:
        row_ME1 = solo.table.solo_mean_row(chance_I.numpy())[..., None]
        return torch.from_numpy(share_MSE @ row_ME1)[..., 0].mean(dim=0)

    return moved_MRS.mean(dim=0) - _added_to_all(before_I, after_I - before_I, added)


def _moved_outputs(solo: Solo, share_MSE: np.ndarray, weights_ME: np.ndarray, index_R: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of some items, (M, R), and what each support row added to them, (M, R, S)."""
    rows_MRE = solo.table.solo_rows(index_R.numpy()).transpose(1, 0, 2)
    after_MR, moved_MRS = (rows_MRE @ weights_ME[..., None])[..., 0], rows_MRE @ share_MSE.transpose(0, 2, 1)
    return torch.from_numpy(after_MR), torch.from_numpy(moved_MRS)


def _added_to_outputs(learner: Learner, adapted: Adapted) -> Tensor:
    """What each support row added to a member's outputs of all items, (I, S)."""
    embedded, support = adapted.embedded, adapted.embedded.batch.support
    vector_ID, bias_IK = embedded.items.vectors_ND, embedded.items.bias_NK
    assert learner.known_weights is not None and bias_IK is not None, "a head over items"  # noqa: PT018
    weight_S = (learner.known_weights(support.y_BR) * support.mask_BR)[0]
    vector_SD = vector_ID[support.index_BR[0]]
    moved_SD = learner.solver.choice_shares(adapted.adaptation, adapted.rate, weight_S, vector_SD)
    chosen_1SDK = learner.network.user_prior.by_row(embedded.items.choice_NG, support.index_BR, support.mask_BR)
    if chosen_1SDK is not None:
        moved_SD = moved_SD + chosen_1SDK[0, :, :-1, -1]
    added_IS = vector_ID @ moved_SD.mT
    if embedded.bias_scale_B11 is None:
        return added_IS
    # popularity counts less because something is known: every row's doing alike
    return added_IS + (embedded.bias_scale_B11[0, 0] - 1) * bias_IK[:, -1:] / support.mask_BR.sum()


def _added_to_all(before_I: Tensor, whole_I: Tensor, added: Callable[[Tensor], Tensor]) -> Tensor:
    """What each row added to log sum exp of all outputs, (S): its mean slope on a straight line, and the remainder.

    `whole_I` is what all rows added; `added` gives what each adds to the mean output under chances of the items.
    """
    share_P1 = ((torch.arange(POINTS, dtype=before_I.dtype) + 0.5) / POINTS).unsqueeze(-1)
    added_S = added(torch.softmax(before_I + share_P1 * whole_I, dim=1).mean(dim=0))
    missing = torch.logsumexp(before_I + whole_I, dim=0) - torch.logsumexp(before_I, dim=0) - added_S.sum()
    return added_S + missing / len(added_S)


def effects_on_preference(
    preference: Preference,
    batch: SupportBatch,
    index_R: Tensor,
    choice_RS: Tensor,
    log_p_R: Tensor,
    rating_RS: Tensor | None,
    rating_R: Tensor | None,
) -> Tensor:
    """What each support row of a single user added to the preference for some items, (R, S).

    `choice_RS` and `rating_RS` are the effects on its parts, `log_p_R` and `rating_R` the log chances and the predicted
    ratings with all of them. That popularity by profile counts less the more is known, and the predicted rating more,
    is every row's doing alike.
    """
    blend, support = preference.blend, batch.support
    count_11 = support.mask_BR.sum(dim=1, keepdim=True)
    share, share_before = (float(profile_share(blend, count)) for count in (count_11, torch.zeros(1, 1)))
    log_q_R = preference.log_shares(batch.users)[0, index_R]
    effect_RS = (1 - share) * choice_RS
    shift_R = (share_before - share) * (log_p_R - choice_RS.sum(dim=1) - log_q_R)
    if rating_RS is not None and rating_R is not None:
        weight_11 = rating_weight(blend, count_11)
        effect_RS = effect_RS + weight_11 * rating_RS
        shift_R = shift_R + weight_11[0] * (rating_R - rating_RS.sum(dim=1))
    effect_RS = effect_RS + shift_R.unsqueeze(-1) / choice_RS.shape[1]
    for linked_RS, weight_11 in zip(preference.links(support, index_R), link_weights(blend, count_11), strict=True):
        effect_RS = effect_RS + weight_11 * linked_RS
    return effect_RS


def _secant_of_relu(old: Tensor, new: Tensor) -> Tensor:
    """(relu(new) - relu(old)) / (new - old), and the derivative where nothing moved."""
    moved = new - old
    still = moved == 0
    return torch.where(still, (old > 0).to(old.dtype), (new.relu() - old.relu()) / moved.masked_fill(still, 1.0))


def _secant(finished: Callable[[Tensor], Tensor], old_R: Tensor, new_R: Tensor) -> Tensor:
    """(finished(new) - finished(old)) / (new - old), and the derivative where nothing moved."""
    moved_R = new_R - old_R
    still_R = moved_R.abs() < 1e-6
    secant_R = (finished(new_R) - finished(old_R)) / moved_R.masked_fill(still_R, 1.0)
    if not still_R.any():
        return secant_R
    with torch.enable_grad():
        point_R = new_R.clone().requires_grad_()
        (slope_R,) = torch.autograd.grad(finished(point_R).sum(), point_R)
    return torch.where(still_R, slope_R, secant_R)


def _secant_of_head(head: Head, old_RK: Tensor, new_RK: Tensor) -> Tensor:
    """Slopes g with g (new - old) = predicted(new) - predicted(old), (R, K): the mean slope on a straight line."""
    moved_RK = new_RK - old_RK
    share_P11 = ((torch.arange(POINTS, dtype=old_RK.dtype) + 0.5) / POINTS).view(-1, 1, 1)
    with torch.enable_grad():
        point_PRK = (old_RK + share_P11 * moved_RK).requires_grad_()
        (slope_PRK,) = torch.autograd.grad(head.predict(point_PRK).sum(), point_PRK)
    slope_RK = slope_PRK.mean(dim=0)
    whole_R = head.predict(new_RK.unsqueeze(0))[0] - head.predict(old_RK.unsqueeze(0))[0]
    missing_R = whole_R - (slope_RK * moved_RK).sum(dim=1)  # what the mean over points misses
    return slope_RK + moved_RK * (missing_R / (moved_RK**2).sum(dim=1).clamp(min=1e-12)).unsqueeze(-1)
