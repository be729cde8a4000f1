"""Many trained networks of one layer as one: their item vectors side by side, in as few dimensions as hold them.

The mean output of M networks is one product, and adapting them amounts to one problem with the mean of their kernels:

    mean_m z_m w_m  =  Z W,      Z = [z_m sqrt(c_m / M)]_m,      W = [w_m / sqrt(c_m M)]_m
    mean_m alpha_m z_m z_m'  =  alpha_1 Z Z',                     c_m = alpha_m / alpha_1

Most of Z lies in few directions, since all members have learned the same items: with the first r eigenvectors V of its
Gram matrix, each item counted as often as it was rated, vectors Z V and weights V' W are a network of width r. All else
that is linear (fields, biases, user priors) carries over exactly; user embeddings and rates are the first member's.

What it is not: the mean of the members' solutions. Each member adapts by itself in an ensemble; here they adapt as one.

Legend: M members, N items, D width of a member's vectors, r of the merged ones, Z all members' D together, K = 1
output, E width of one field of the user embedding.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from paml.methods.learner import Learner
from paml.methods.registry import LearnerSettings, build_learner
from paml.network.build import DataShape
from paml.network.items import ItemFactors
from paml.network.network import Network


def can_merge(learner: Learner) -> bool:
    """Whether an ensemble of such learners can be one network."""
    network, items = learner.network, learner.network.items
    return (
        len(network.decision.theta()) == 1
        and learner.head.outputs == 1
        and not network.context.fields
        and isinstance(items, ItemFactors)
        and items.affinity is None
        and network.user_prior.profile is not None
        and learner.solver.can_merge
        and learner.rates.can_merge
    )


def settings_in_use(method: str, shape: DataShape, settings: LearnerSettings) -> LearnerSettings:
    """The settings of what a trained part is used as: those of one network, if its members are merged."""
    if not settings.merged_size or settings.ensemble_size == 1:
        return settings
    with torch.device("meta"):
        learner = build_learner(method, shape, settings, torch.Generator())
    if not can_merge(learner):
        return settings
    width = min(settings.merged_size, settings.ensemble_size * settings.item_embedding)
    prior = width + 1 if settings.prior_from_items else 0
    sizes = {"item_embedding": width, "prior_from_items": prior, "ensemble_size": 1, "merged_size": 0}
    return settings.model_copy(update=sizes)


@torch.no_grad()
def directions(vectors: Sequence[Tensor], count_N: Tensor, scale_M: Tensor, width: int) -> list[Tensor]:
    """V, cut into the members' parts, (D, r) each; a direction's largest entry is positive.

    `vectors` are the members' vectors of some items, which training users rated `count_N` times; `scale_M` is c.
    """
    root_M = scale_M.sqrt()
    side_by_side_NZ = torch.cat([z_ND * root for z_ND, root in zip(vectors, root_M, strict=True)], dim=1).double()
    side_by_side_NZ *= count_N.sqrt().unsqueeze(-1)
    V_Zr = torch.linalg.eigh(side_by_side_NZ.T @ side_by_side_NZ)[1][:, -width:].flip(1)
    largest_1r = V_Zr.gather(0, V_Zr.abs().argmax(dim=0, keepdim=True))
    return [*(V_Zr * largest_1r.sign()).to(count_N.dtype).split([z_ND.shape[1] for z_ND in vectors])]


@torch.no_grad()
def merge(members: Sequence[Learner], into: Learner, parts: Sequence[Tensor], scale_M: Tensor) -> None:
    """Overwrite the learner `into`, of settings in use, by what the members have learned.

    `parts` are the directions above; `scale_M` is c, or a multiple of it for users who may differ more, or less.
    """
    basis = _Basis(parts, scale_M)
    networks, network = [member.network for member in members], into.network
    _merge_items(networks, network, basis)
    _merge_users(networks, network, basis)
    if network.bias_power is not None:
        powers = [one.bias_power for one in networks if one.bias_power is not None]
        network.bias_power.copy_(torch.stack([*powers]).mean())
    into.rates.load_state_dict(members[0].rates.state_dict())
    into.solver.merge([member.solver for member in members], scale_M)
    weights = [member.known_weights for member in members if member.known_weights is not None]
    if into.known_weights is not None:
        into.known_weights.merge(weights)


class _Basis:
    """From the members' vectors and weights to merged ones."""

    def __init__(self, parts: Sequence[Tensor], scale_M: Tensor) -> None:
        root_M = (scale_M / len(scale_M)).sqrt()
        self._vector = [part_Dr * root for part_Dr, root in zip(parts, root_M, strict=True)]
        self._weight = [part_Dr / (root * len(parts)) for part_Dr, root in zip(parts, root_M, strict=True)]

    def vector(self, z: Sequence[Tensor]) -> Tensor:
        """Members' item vectors, (..., D) each, as merged ones, (..., r)."""
        return torch.stack([one @ part_Dr for one, part_Dr in zip(z, self._vector, strict=True)]).sum(dim=0)

    def weight(self, w: Sequence[Tensor]) -> Tensor:
        """The same for weights of item vectors; the mean of their products is the product of the merged ones."""
        return torch.stack([one @ part_Dr for one, part_Dr in zip(w, self._weight, strict=True)]).sum(dim=0)

    def prior(self, w: Sequence[Tensor]) -> Tensor:
        """Weights with a constant in the last place, (..., D + 1) each, as merged ones, (..., r + 1)."""
        return torch.cat([self.weight([one[..., :-1] for one in w]), _mean([one[..., -1:] for one in w])], dim=-1)


def _merge_items(networks: Sequence[Network], network: Network, basis: _Basis) -> None:
    """Own vectors and those of fields: [vector, bias, choice vector], where a merged choice vector is its own prior."""
    width = networks[0].user_prior.width
    choices = [one.user_prior.choice for one in networks if one.user_prior.choice is not None]

    def merged(rows: Sequence[Tensor]) -> Tensor:
        vector = basis.vector([one[:, :width] for one in rows])
        bias = _mean([one[:, width : width + 1] for one in rows])
        told = [one[:, width + 1 :] @ layer for one, layer in zip(rows, choices, strict=False)]
        return torch.cat([vector, bias, *([basis.prior(told)] if told else [])], dim=1)

    items = network.items
    assert isinstance(items, ItemFactors), "as `can_merge` says"
    items.known.load_state_dict(networks[0].items.known.state_dict())
    _overwrite(items, [one.items for one in networks], merged)
    if network.user_prior.choice is not None:
        network.user_prior.choice.copy_(torch.eye(len(network.user_prior.choice)))


def _merge_users(networks: Sequence[Network], network: Network, basis: _Basis) -> None:
    """theta and the prior by profile; what user embeddings add to the outputs becomes a part of the latter."""
    theta = [one.decision.theta()[0] for one in networks]
    rows_DK, shared_CK = network.decision.theta()[0]
    rows_DK.copy_(basis.weight([weights.rows_DK.T for weights in theta]).T)
    shared_CK.zero_()
    shared_CK[-1:] = _mean([weights.shared_CK[-1:] for weights in theta])
    network.user.load_state_dict(networks[0].user.state_dict())
    profile, profiles = network.user_prior.profile, [one.user_prior.profile for one in networks]
    assert profile is not None, "as `can_merge` says"
    given = [one for one in profiles if one is not None]
    size = networks[0].user.width // max(len(networks[0].user.fields), 1)
    for k, field in enumerate(profile.fields):
        parts = [weights.shared_CK[k * size : (k + 1) * size] for weights in theta]
        level = _mean([one.user.of(field) @ part_EK for one, part_EK in zip(networks, parts, strict=True)])
        merged = basis.prior([one.of(field) for one in given])
        merged[:, -1:] += level
        profile.of(field).copy_(merged)


def _overwrite(into: nn.Module, sources: Sequence[nn.Module], merged: Callable[[Sequence[Tensor]], Tensor]) -> None:
    """Every parameter of a module by those of the same name."""
    given = [dict(source.named_parameters()) for source in sources]
    for name, parameter in into.named_parameters():
        parameter.copy_(merged([one[name] for one in given]))


def _mean(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([*parts]).mean(dim=0)
