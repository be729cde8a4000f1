"""A predictor compiled for networks of one layer: all members side by side, and a few operations per user.

    look up the profile, sum its rows     -> embeddings, rates and prior means for all members
    look up the rows of the rated items   -> one batched solve, or a few batched steps (engine/joint.py)
    multiply by the table of all items    -> outputs, predictions, their mean

The answers are those of the general path (members.py), which has the formulas; a test compares the two.

Legend: M members, B users, N = M B, S support rows, I all items, R rows, E entries of a row, K outputs, H width of the
user embedding, L entries that the user prior covers (the constant included), G width of choice vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from paml.engine.choice import LevelWeights
from paml.engine.inputs import Weights
from paml.engine.joint import Columns, JointKnown, JointTable, on_large_pages
from paml.engine.joint_solvers import JointClosedForm, JointSteps
from paml.engine.solo import SoloRate
from paml.methods.learner import Learner
from paml.methods.rates import RateSource
from paml.network.items import ItemVectors
from paml.network.network import Network
from paml.network.user_prior import FULL_WEIGHT, UserPrior
from paml.recommend.fields import FieldTable
from paml.recommend.members import CELLS_AT_ONCE, Member, mean_prediction
from paml.recommend.requests import EncodedUser, Values, side_by_side
from paml.recommend.solo import Solo, SoloUser

MAX_ROWS = 1 << 20  # numbers in the looked-up rows of users who are adapted together: more do not fit into a cache


@dataclass(frozen=True)
class PlannedUsers:
    """B adapted users: what their rows are multiplied by, for all members."""

    weights_MBEK: Tensor
    h_BH: Tensor
    """The first member's embeddings."""
    rate_B: Tensor
    """The users' rates, means over members."""

    def of(self, b: int) -> "PlannedUsers":
        """One of the users."""
        if len(self.h_BH) == 1:
            return self
        return PlannedUsers(self.weights_MBEK[:, b : b + 1], self.h_BH[b : b + 1], self.rate_B[b : b + 1])

    def solo_weights(self) -> np.ndarray:
        """The weights of a single user with one output, (M, E)."""
        weights_ME: np.ndarray = self.weights_MBEK[:, 0, :, 0].numpy()
        return weights_ME

    def tensors(self) -> list[Tensor]:
        """The tensors that belong to these users alone."""
        return [self.weights_MBEK, self.h_BH, self.rate_B]


class Plan:
    """An ensemble of networks of one layer. Nothing changes after loading: threads may share it."""

    @staticmethod
    def suits(learner: Learner) -> bool:
        """Whether an ensemble of such learners can be compiled.

        A solver needs a joint form of its own: one that it inherits need not do what it does.
        """
        return len(learner.network.decision.theta()) == 1 and "joint" in vars(type(learner.solver))

    @torch.no_grad()
    def __init__(self, members: Sequence[Member]) -> None:
        """The items' rows are copied; `members` are the same members as views of them."""
        learners = [member.learner for member in members]
        first = members[0]
        network, self._head = first.learner.network, first.learner.head
        self._table: JointTable = first.table.joint([one.table for one in members], _item_rows(members))
        theta = [learner.network.decision.theta()[0] for learner in learners]
        bias = 0 if first.items.bias_NK is None else self._head.outputs
        vector = first.table.vectors_ND.shape[1]
        self._columns = Columns(vector, bias, 1 + bias + len(theta[0].rows_DK))
        self._shared = _covered(network.user_prior)
        self._base_MEK = self._columns.laid_out(
            torch.stack([weights.shared_CK[-1:] for weights in theta]),
            torch.eye(self._head.outputs).repeat(len(members), 1, 1),
            torch.stack([weights.rows_DK for weights in theta]),
        )
        self._users = FieldTable(network.user, _user_rows(learners, theta))
        self._contexts = None
        if network.context.fields:
            rows = torch.stack([learner.network.context.as_rows() for learner in learners], dim=1)
            self._contexts = FieldTable(network.context, rows)
        self._choice = _choices(members)
        powers = [one.network.bias_power for one in learners if one.network.bias_power is not None]
        self._bias_power_M1 = torch.stack([*powers]).unsqueeze(-1).numpy() if powers else None
        kind = type(first.learner.rates)
        joint = kind.joint if "joint" in vars(kind) else RateSource.joint  # as with solvers, not an inherited one
        self._rates = joint([learner.rates for learner in learners])
        self._solver = type(first.learner.solver).joint([learner.solver for learner in learners], self._columns)
        self._does_adapt = first.learner.solver.steps > 0
        weights = [one.known_weights for one in learners if one.known_weights is not None]
        self._known_weights = LevelWeights.joint(weights) if weights else None
        spreads = [one.items.spread_DD for one in members if one.items.spread_DD is not None]
        self._spread_MDD = torch.stack(spreads) if spreads else None
        self.solo = self._made_solo()
        """The form for one user, if there is one."""
        self.members = tuple(self._seen(member, m) for m, member in enumerate(members))

    def adapt(self, users: Sequence[EncodedUser]) -> PlannedUsers:
        """Adapt to any number of users; those with about as many ratings together."""
        if self.solo is not None:
            at_once = self._at_once(0)
            parts = (users[start : start + at_once] for start in range(0, len(users), at_once))
            return _as_planned([user for part in parts for user in self.solo.adapt(part, self._begun(part))])
        if len(users) == 1:
            return self._adapt(users)
        order = sorted(range(len(users)), key=lambda b: -len(users[b].index_S))
        found, done = [], 0
        while done < len(order):
            together = self._at_once(len(users[order[done]].index_S))
            found.append(self._adapt([users[b] for b in order[done : done + together]]))
            done += together
        place_B = torch.from_numpy(np.argsort(order))
        return PlannedUsers(
            torch.cat([part.weights_MBEK for part in found], dim=1)[:, place_B],
            torch.cat([part.h_BH for part in found])[place_B],
            torch.cat([part.rate_B for part in found])[place_B],
        )

    def score(self, users: PlannedUsers, index_R: Tensor, context: Values | None) -> Tensor:
        """Predictions for the same items in the same context for all users, (B, R)."""
        M, B, _, K = users.weights_MBEK.shape
        if self.solo is not None and B == 1:
            return torch.from_numpy(self.solo.score(users.solo_weights(), index_R.numpy())).unsqueeze(0)
        weights_MQE = self._in_context(users, context).mT.reshape(M, B * K, -1)
        out_MQR = weights_MQE @ self._table.rows(index_R).permute(1, 2, 0)
        return mean_prediction(self._head, out_MQR.view(M, B, K, -1).mT)

    def score_all(self, users: PlannedUsers, context: Values | None) -> Tensor:
        """The same for all items of the catalogue, (B, I)."""
        M, B, _, K = users.weights_MBEK.shape
        if self.solo is not None:
            return torch.from_numpy(self.solo.score_all(users.weights_MBEK[..., 0].numpy()))
        weights_NEK = self._in_context(users, context)
        items, step = len(self._table), max(CELLS_AT_ONCE // (M * B * K), self._table.smallest_chunk)
        outputs = (self._table.times(weights_NEK, slice(start, start + step)) for start in range(0, items, step))
        parts = [mean_prediction(self._head, out_NKR.view(M, B, K, -1).mT) for out_NKR in outputs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    @property
    def table(self) -> JointTable:
        """The rows of all items."""
        return self._table

    @property
    def has_directions(self) -> bool:
        """Whether predictions order items about as the sum of all members' outputs does, which is one per member."""
        return self._head.outputs == 1 and not self._head.over_items

    def direction(self, users: PlannedUsers) -> Tensor:
        """What rows of all members, side by side, are multiplied by for a single user, to get that sum, (M E)."""
        return self._in_context(users, None)[..., 0].flatten()

    def _adapt(self, users: Sequence[EncodedUser]) -> PlannedUsers:
        weights_MBEK, h_MBH = self._unadapted(users)
        rate = self._rates(h_MBH)
        if self._does_adapt and any(len(user.index_S) for user in users):
            known = self._known(users)
            weights_NEK = self._solver(known, weights_MBEK.flatten(0, 1), rate)
            weights_MBEK = weights_NEK.view_as(weights_MBEK)
        return PlannedUsers(weights_MBEK, h_MBH[0], rate.per_user_MB.mean(dim=0))

    def _begun(self, users: Sequence[EncodedUser]) -> list[SoloUser]:
        """The users before they are adapted one by one; what they have in common is looked up for many at once."""
        assert self.solo is not None
        if len(users) == 1:
            return [self.solo.unadapted(users[0])]
        weights_MBEK, h_MBH = self._unadapted(users)
        rate = self._rates(h_MBH)
        alpha_MB, weights_MBE, h = (part.numpy(force=True) for part in (rate.per_user_MB, weights_MBEK[..., 0], h_MBH))
        if rate.of_parameters is None:
            rates = [SoloRate(alpha_MB[:, b], h[:, b]) for b in range(len(users))]
        else:
            rate_MBE = self._columns.rates(rate).view(weights_MBE.shape).numpy(force=True)
            rates = [SoloRate(alpha_MB[:, b], h[:, b], rate_MBE[:, b]) for b in range(len(users))]
        return [SoloUser(weights_MBE[:, b], one) for b, one in enumerate(rates)]

    def _unadapted(self, users: Sequence[EncodedUser]) -> tuple[Tensor, Tensor]:
        """theta with each user's prior and part of the shared inputs, (M, B, E, K), and the embeddings, (M, B, H)."""
        M, _, K = self._base_MEK.shape
        known_MBW = self._users([user.profile for user in users]).transpose(0, 1)
        H = known_MBW.shape[2] - self._shared * K
        weights_MBEK = self._base_MEK.unsqueeze(1).repeat(1, len(users), 1, 1)
        own_MBLK = weights_MBEK[:, :, : self._shared]
        own_MBLK += known_MBW[..., H:].view(M, -1, self._shared, K)
        count_B = np.array([len(user.index_S) for user in users], dtype=np.float32)
        if self._choice is not None and count_B.any():
            own_MBLK += self._chosen(users, count_B).view_as(own_MBLK)
        if self._bias_power_M1 is not None:
            bias = slice(1 + self._columns.vector, 1 + self._columns.vector + self._columns.bias)
            scale_MB = (1 + count_B) ** self._bias_power_M1
            weights_MBEK[:, :, bias] *= torch.from_numpy(scale_MB[..., None, None])
        return weights_MBEK, known_MBW[..., :H]

    def _chosen(self, users: Sequence[EncodedUser], count_B: np.ndarray) -> Tensor:
        """What the choice of rated items says about the users, before any rating is read, (M, B, L K)."""
        assert self._choice is not None
        rows_IMG, layer_MGL = self._choice
        index_T = torch.from_numpy(np.concatenate([user.index_S for user in users]))
        start_B = torch.from_numpy((np.cumsum(count_B) - count_B).astype(np.int64))
        sum_BW = embedding_bag(index_T, rows_IMG.flatten(1), start_B, mode="sum")
        sum_BW *= torch.from_numpy((count_B[:, None] + FULL_WEIGHT) ** -0.5)
        sum_MBG = sum_BW.view(-1, *rows_IMG.shape[1:]).transpose(0, 1)
        return sum_MBG.roll(1, dims=2) if layer_MGL is None else sum_MBG @ layer_MGL

    def _known(self, users: Sequence[EncodedUser]) -> JointKnown:
        """What the users are adapted to."""
        index_BS, y_BS, mask_BS = side_by_side(users)
        B, S = index_BS.shape
        rows_TME = self._table.rows(torch.from_numpy(index_BS).view(-1))
        if self._contexts is not None:
            rows_TME = torch.cat([rows_TME, self._contexts(_padded_contexts(users, S))], dim=2)
        rows_BSME = rows_TME.view(B, S, *rows_TME.shape[1:])
        if B > 1:
            rows_BSME = rows_BSME * torch.from_numpy(mask_BS[..., None, None])
        rows_NSE = rows_BSME.permute(2, 0, 1, 3).flatten(0, 1)
        y_MBS, count_MB = np.repeat(y_BS[None], self._table.members, axis=0), mask_BS.sum(axis=1)
        if self._known_weights is not None:
            y_MBS = self._known_weights(y_BS) * mask_BS
            count_MB = y_MBS.sum(axis=2)
        return JointKnown(
            rows_NSE,
            torch.from_numpy(y_MBS.reshape(-1, S)),
            torch.from_numpy(count_MB).expand(len(y_MBS), B),
            self._columns,
            self._table,
            self._spread_MDD,
        )

    def _in_context(self, users: PlannedUsers, context: Values | None) -> Tensor:
        """The weights of what items determine; a context moves the constant, (N, E, K)."""
        weights_NEK, items = users.weights_MBEK.flatten(0, 1), self._table.width
        if self._contexts is None or context is None:
            return weights_NEK[:, :items]
        context_MD = self._contexts([context])[0]
        moved_MBK = torch.einsum("md,mbdk->mbk", context_MD, users.weights_MBEK[:, :, items:])
        weights_NEK = weights_NEK[:, :items].clone()
        weights_NEK[:, 0] += moved_MBK.flatten(0, 1)
        return weights_NEK

    def _at_once(self, ratings: int) -> int:
        """How many users with this many ratings are adapted together."""
        M, E, _ = self._base_MEK.shape
        entries = M * E * max(ratings, 1)
        if self._head.over_items:  # every step reads the whole table: the more users together, the better
            return max(1, CELLS_AT_ONCE // max(entries, M * len(self._table)))
        return max(1, MAX_ROWS // entries)

    def _made_solo(self) -> Solo | None:
        """The form for one user, if there is one."""
        solver = self._solver
        if not Solo.suits(self._head, solver, has_contexts=self._contexts is not None):
            return None
        assert isinstance(solver, JointSteps | JointClosedForm)
        return Solo(
            self._head,
            self._table,
            self._columns,
            self._base_MEK[..., 0].numpy(force=True),
            self._shared,
            self._users,
            None if self._choice is None else self._choice[0].numpy(force=True),
            None if self._choice is None or self._choice[1] is None else self._choice[1].numpy(force=True),
            self._bias_power_M1,
            self._rates,
            solver,
            self._known_weights,
        )

    def _seen(self, member: Member, m: int) -> Member:
        """A member whose item vectors are views of the plan's."""
        end = 1 + self._columns.vector
        rows_IE = self._table.rows_IME[:, m]
        items = ItemVectors(
            rows_IE[:, 1:end],
            rows_IE[:, end:] if self._columns.bias else None,
            None if self._choice is None else self._choice[0][:, m],
            member.items.spread_DD,
            together_NE=rows_IE[:, 1:] if self._head.over_items else None,
        )
        return replace(member, items=items, table=member.table.seen_in(self._table, m, items.vectors_ND))


def _as_planned(users: Sequence[SoloUser]) -> PlannedUsers:
    if len(users) == 1:
        weights_MBE, h_BH = users[0].weights_ME[:, None], users[0].rate.h_MH[:1]
    else:
        weights_MBE = np.stack([user.weights_ME for user in users], axis=1)
        h_BH = np.stack([user.rate.h_MH[0] for user in users])
    rate_B = np.add.reduce([user.rate.per_user_M for user in users], axis=1) / len(weights_MBE)
    return PlannedUsers(torch.from_numpy(weights_MBE).unsqueeze(-1), torch.from_numpy(h_BH), torch.from_numpy(rate_B))


def _item_rows(members: Sequence[Member]) -> Tensor:
    """[1, item vector, item bias] of all items, (I, M, E)."""

    def rows(member: Member) -> Tensor:
        vectors_ID, bias_IK = member.table.vectors_ND, member.items.bias_NK
        one_I1 = vectors_ID.new_ones(len(vectors_ID), 1)
        return torch.cat([one_I1, vectors_ID, *([] if bias_IK is None else [bias_IK])], dim=1)

    return torch.stack([rows(member) for member in members], dim=1)


def _user_rows(learners: Sequence[Learner], theta: Sequence[Weights]) -> Tensor:
    """Of each profile value: its embedding, and what it adds to the constant and to the prior mean, (V, M, H + L K)."""

    def rows(network: Network, weights: Weights) -> Tensor:
        embedding_VH, prior = network.user.as_rows(), network.user_prior
        shape = len(embedding_VH), _covered(prior), weights.shared_CK.shape[1]
        if prior.profile is None:
            own_VLK = embedding_VH.new_zeros(shape)
        else:
            own_VLK = prior.profile.as_rows().view(shape).roll(1, dims=1)  # its constant comes last
        own_VLK[:, 0] += embedding_VH @ weights.shared_CK[:-1]
        return torch.cat([embedding_VH, own_VLK.flatten(1)], dim=1)

    pairs = zip(learners, theta, strict=True)
    return torch.stack([rows(learner.network, weights) for learner, weights in pairs], dim=1)


def _covered(prior: UserPrior) -> int:
    """How many of a row's first entries a user's prior covers: the constant and, if there is one, the item vector."""
    return 1 + (0 if prior.profile is None and prior.choice is None else prior.width)


def _padded_contexts(users: Sequence[EncodedUser], rows: int) -> list[Values]:
    """The contexts of all users' ratings; where there is no rating, any context."""
    any_context = next(context for user in users for context in user.contexts)
    padding = ([any_context] * (rows - len(user.contexts)) for user in users)
    return [context for user, more in zip(users, padding, strict=True) for context in (*user.contexts, *more)]


def _choices(members: Sequence[Member]) -> tuple[Tensor, Tensor | None] | None:
    """Choice vectors of all items, (I, M, G), and the layer that makes a prior of them, (M, G, L K).

    Of a merged network they are priors already (methods/merge.py), with the constant in the last place: no layer.
    """
    priors = [member.learner.network.user_prior for member in members]
    rows = [member.items.choice_NG for member in members if member.items.choice_NG is not None]
    layers = [prior.choice for prior in priors if prior.choice is not None]
    if not layers:
        return None
    layer_MGLK = (
        torch.stack([*layers]).view(len(layers), len(layers[0]), _covered(priors[0]), -1).roll(1, dims=2)
    )  # the constant comes last in it
    rows_IMG = torch.stack(rows, dim=1)
    is_prior = all(torch.equal(layer, torch.eye(*layer.shape).to(layer)) for layer in layers)
    return on_large_pages(rows_IMG), None if is_prior else layer_MGLK.flatten(2)
