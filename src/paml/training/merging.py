"""The networks of a trained part as one (methods/merge.py), which the rest of the project then uses.

Averaging leaves out what single members have made up, so users may differ by more than each member thinks: by how much
more, validation users decide.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Dataset
from paml.episodes.batches import Loader
from paml.episodes.tasks import Tasks
from paml.errors import TrainingError
from paml.methods.learner import Ensemble, Learner
from paml.methods.merge import directions, merge
from paml.methods.registry import LearnerSettings, build_ensemble
from paml.training.run import RunSettings

SPREADS = (1.0, 1.1, 1.25, 1.4)  # times the members' mean variance of users
MAX_ITEMS = 50_000  # items with the most training rows that decide which directions are kept
USERS = 256  # training users whose rates are looked at

Judge = Callable[[Ensemble], float | None]
"""The validation metric, lower is better; None without validation users."""


@torch.no_grad()
def merged(
    ensemble: Ensemble, recipe: LearnerSettings, settings: RunSettings, data: Dataset, loader: Loader, judge: Judge
) -> tuple[Ensemble, float | None]:
    """A trained ensemble as one network, whose settings are those of `recipe`, and what validation says."""
    one = build_ensemble(settings.method, settings.shape(), recipe, torch.Generator().manual_seed(settings.seed))
    one.to(next(ensemble.parameters()).device)
    members, (into,) = ensemble.members, one.members
    scale_M = _relative_rates(members, data, loader)
    item_N, count_N = _most_rated(data)
    items = loader.items(item_N)
    vectors = [member.network.embed_items(*items)[0].vectors_ND for member in members]
    parts = directions(vectors, count_N.to(scale_M), scale_M, into.network.user_prior.width)

    def judged(spread: float) -> float | None:
        merge(members, into, parts, spread * scale_M)
        return judge(one)

    found = {spread: judged(spread) for spread in SPREADS}
    values = {spread: value for spread, value in found.items() if value is not None and math.isfinite(value)}
    if not values and None not in found.values():
        remedy = "lower rate_scale, or train with merged_size=0"
        raise TrainingError("the merged network has no finite validation loss", remedy=remedy)
    best = min(values, key=lambda spread: values[spread], default=SPREADS[0])
    merge(members, into, parts, best * scale_M)
    return one, values.get(best)


def _relative_rates(members: list[Learner], data: Dataset, loader: Loader) -> Tensor:
    """The members' mean rates relative to the first one's, (M)."""
    users = loader.load(next(Tasks.of(data, "train").stored(USERS))).users
    rates = [member.rates(member.network.embed_users(users)).per_user(users.count).mean() for member in members]
    alpha_M = torch.stack(rates)
    return torch.where(alpha_M[0] > 0, alpha_M / alpha_M[0], torch.ones_like(alpha_M))


def _most_rated(data: Dataset) -> tuple[np.ndarray, Tensor]:
    """The items that training users rated most often, and how often."""
    count_I = np.bincount(data.array("item")[: data.training_rows], minlength=data.manifest.items)
    most = np.sort(np.argsort(-count_I, kind="stable")[:MAX_ITEMS])
    item_N = most[count_I[most] > 0]
    return item_N, torch.from_numpy(count_I[item_N])
