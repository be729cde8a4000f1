"""The methods, as compositions: where the inner rate comes from, the meta-loss, and the solver.

| method   | rate                                       | meta-loss                                    | solver      |
|----------|--------------------------------------------|----------------------------------------------|-------------|
| melu     | fixed                                      | query loss                                   | gradient    |
| meta_sgd | one per parameter, learned                 | query loss                                   | gradient    |
| transfer | fixed, in fine-tuning only                 | pooled loss, no inner step in training       | gradient    |
| paml     | alpha'(h)                                  | query loss                                   | gradient    |
| at_paml  | alpha'(h) + similar users' rates (memory)  | query loss                                   | gradient    |
| reg_paml | alpha'(h)                                  | query loss + gamma * gradient norm^2 * alpha | gradient    |
| ridge    | alpha'(h), the variance of the prior       | query loss                                   | closed_form |
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from pydantic import Field

from paml.data.dataset import Dataset
from paml.engine.choice import LevelWeights
from paml.engine.heads import Head, HeadSettings, head_for
from paml.engine.solvers import SOLVER_REGISTRY, SolverSettings
from paml.errors import SettingsError
from paml.methods.learner import Ensemble, Learner
from paml.methods.memory import MemoryRate, MemorySettings
from paml.methods.objectives import Objective, ObjectiveSettings, pooled_loss, query_loss, regularised_query_loss
from paml.methods.rates import FixedRate, ParameterRate, PersonalRate, RateSettings, RateSource
from paml.methods.spaces import COMMON, FIXED_RATE, MEMORY, PERSONAL_RATE, Among, Range, Space
from paml.network.build import DataShape, NetworkSettings, build_network
from paml.network.network import Network
from paml.registry import Origin, Registry, callable_entry, of_type
from paml.settings import added


class LearnerSettings(ObjectiveSettings, MemorySettings, RateSettings, SolverSettings, HeadSettings, NetworkSettings):
    """Everything that a method is built from: the settings of its components, and how many members it has."""

    taste_dropout: float = Field(
        0.0, ge=0, lt=1, description="share of a user's weights for item vectors left out in training (head=choice)"
    )
    ensemble_size: int = Field(
        1, gt=0, description="networks with different random initial weights; predictions are their mean"
    )
    merged_size: int = added(
        0, "merge the trained networks into one with item vectors of this size, where that is possible; 0: never", ge=0
    )


RateMaker = Callable[[Network, LearnerSettings, torch.Generator], RateSource]
ObjectiveMaker = Callable[[ObjectiveSettings], Objective]


@dataclass(frozen=True)
class Method:
    """A line of the table above."""

    label: str
    """For tables."""
    summary: str
    rate: str
    """Where the inner rate comes from: a name in `RATES`, or one that somebody registered."""
    objective: ObjectiveMaker
    solver: str = "gradient"
    """How users are adapted: a name in `SOLVERS` (engine/solvers.py), or one that somebody registered."""
    largest_rate: Callable[[LearnerSettings], float | None] | None = None
    """The largest rate that a user can have, where it is known; None where all users have the same rates."""
    rate_label: str = "learning rate"
    """What a user's rate is, in words."""
    of_the_paper: bool = False
    """Whether it is in the paper: a comparison with the recipe `paper` takes only these."""
    space: Space = field(default_factory=lambda: dict(COMMON))
    """What `paml tune` searches, and in which ranges."""


def _fixed(network: Network, settings: LearnerSettings, rng: torch.Generator) -> RateSource:
    return FixedRate(settings.inner_rate)


def _per_parameter(network: Network, settings: LearnerSettings, rng: torch.Generator) -> RateSource:
    return ParameterRate(network.decision.theta(), settings.inner_rate)


def _personal(network: Network, settings: LearnerSettings, rng: torch.Generator) -> PersonalRate:
    return PersonalRate(network.user.width, settings.rate_scale, rng)


def _with_memory(network: Network, settings: LearnerSettings, rng: torch.Generator) -> RateSource:
    return MemoryRate(_personal(network, settings, rng), network.user.width, settings.part(MemorySettings))


def _scale(settings: LearnerSettings) -> float:
    return settings.rate_scale


def _scale_with_memory(settings: LearnerSettings) -> float | None:
    """The user's own rate plus a mean of nodes; the bound is not known if nodes store such sums themselves."""
    node = max(settings.rate_scale, settings.warmup_rate)
    return settings.rate_scale + node if settings.memory_stores == "own" else None


def _query_loss(settings: ObjectiveSettings) -> Objective:
    return partial(query_loss, user_bias_discount=settings.user_bias_discount)


def _regularised(settings: ObjectiveSettings) -> Objective:
    return regularised_query_loss(settings.gamma, settings.user_bias_discount)


def _pooled(settings: ObjectiveSettings) -> Objective:
    return pooled_loss


RATES: dict[str, RateMaker] = {
    "fixed": _fixed,
    "per_parameter": _per_parameter,
    "personal": _personal,
    "memory": _with_memory,
}
"""Rate functions, by the names that methods use."""
RATE_REGISTRY: Registry[RateMaker] = Registry("rate", RATES, callable_entry)

METHODS: dict[str, Method] = {
    "melu": Method(
        "MeLU", "MAML with one fixed rate", "fixed", _query_loss, of_the_paper=True, space=COMMON | FIXED_RATE
    ),
    "meta_sgd": Method(
        "Meta-SGD",
        "one learned rate per parameter",
        "per_parameter",
        _query_loss,
        of_the_paper=True,
        space=COMMON | FIXED_RATE,
    ),
    "transfer": Method(
        "transfer learning",
        "pooled training, fine-tuning per user",
        "fixed",
        _pooled,
        of_the_paper=True,
        space=COMMON | FIXED_RATE,
    ),
    "paml": Method(
        "PAML",
        "a rate per user",
        "personal",
        _query_loss,
        largest_rate=_scale,
        of_the_paper=True,
        space=COMMON | PERSONAL_RATE,
    ),
    "at_paml": Method(
        "AT-PAML",
        "a rate per user, with similar users' rates",
        "memory",
        _query_loss,
        largest_rate=_scale_with_memory,
        of_the_paper=True,
        space=COMMON | PERSONAL_RATE | MEMORY,
    ),
    "reg_paml": Method(
        "REG-PAML",
        "a rate per user, regularised",
        "personal",
        _regularised,
        largest_rate=_scale,
        of_the_paper=True,
        space=COMMON | PERSONAL_RATE | {"gamma": Range(1e-6, 1e-1, log=True)},
    ),
    "ridge": Method(
        "closed-form ridge",
        "the last layer in closed form, a prior per user",
        "personal",
        _query_loss,
        "closed_form",
        largest_rate=_scale,
        rate_label="prior variance",
        space=COMMON | {"rate_scale": Range(1e-2, 10.0, log=True)},
    ),
}


def _problem(name: str, entry: object) -> str | None:
    """What is wrong with somebody's method, or None."""
    unusable = of_type(Method, name, entry, "objective")
    if unusable is not None or not isinstance(entry, Method):
        return unusable
    for registry, part in ((RATE_REGISTRY, entry.rate), (SOLVER_REGISTRY, entry.solver)):
        try:
            registry.find(part)
        except SettingsError as error:
            return f"cannot be built ({error})"
    wrong = [setting for setting, range_ in entry.space.items() if not isinstance(range_, Range | Among)]
    return f"has neither a Range nor an Among for '{wrong[0]}' in its space" if wrong else None


METHOD_REGISTRY: Registry[Method] = Registry("method", METHODS, _problem)


def methods_of(recipe: str) -> tuple[str, ...]:
    """The methods of a comparison by default: all, or with the recipe `paper` those of the paper."""
    known = METHODS if recipe == "paper" else METHOD_REGISTRY.all()
    return tuple(name for name, method in known.items() if recipe != "paper" or method.of_the_paper)


def find_method(name: str) -> Method:
    """The method called `name`, or an error that lists the known ones."""
    return METHOD_REGISTRY.find(name)


def origins_of(name: str) -> list[Origin]:
    """The packages beside paml that a method comes from: its own, and those of its rate function and solver."""
    method = find_method(name)
    parts = (METHOD_REGISTRY.origin(name), RATE_REGISTRY.origin(method.rate), SOLVER_REGISTRY.origin(method.solver))
    return list(dict.fromkeys(origin for origin in parts if origin is not None))


def build_learner(method: str, shape: DataShape, settings: LearnerSettings, rng: torch.Generator) -> Learner:
    """An untrained learner, generated from the schema and the vocabulary sizes."""
    found, head = find_method(method), head_for(settings.part(HeadSettings), shape.schema.target)
    solver = SOLVER_REGISTRY.find(found.solver)(head, settings.part(SolverSettings))
    if settings.user_bias_discount and not head.quadratic:
        remedy = "use head=value, or set user_bias_discount=0"
        raise SettingsError("user_bias_discount needs a squared error", remedy=remedy)
    if settings.taste_dropout and not head.over_items:
        raise SettingsError("taste_dropout is for a choice among all items", remedy="use head=choice, or set it to 0")
    if head.over_items:
        check_choice(settings)
        shape = replace(shape, schema=shape.schema.model_copy(update={"context": ()}))  # rows are items, in no context
    network = build_network(shape, settings.part(NetworkSettings), head.outputs, rng)
    if settings.start_at_mean:
        with torch.no_grad():
            network.decision.shared[-1][-1].copy_(head.initial_bias(shape.training_mean))
    weights = LevelWeights(shape.schema.target.levels) if head.over_items else None
    rates = RATE_REGISTRY.find(found.rate)(network, settings, rng)
    return Learner(network, rates, solver, head, weights, settings.taste_dropout)


def check_choice(settings: LearnerSettings) -> None:
    """Raise a SettingsError unless a choice among all items can be made: with item vectors and one adapted layer."""
    if settings.network != "factors" or settings.hidden:
        remedy = "set network=factors hidden= item_embedding=64, or use the recipe tuned"
        raise SettingsError("a choice among all items needs item vectors and no hidden layer", remedy=remedy)
    if settings.affinity_fields:
        raise SettingsError("affinity is for ratings, not for a choice among all items", remedy="set affinity_fields=")


def build_ensemble(method: str, shape: DataShape, settings: LearnerSettings, rng: torch.Generator) -> Ensemble:
    """As many untrained learners as the settings say."""
    return Ensemble([build_learner(method, shape, settings, rng) for _ in range(settings.ensemble_size)])


def tensors_of_a_member(method: str, shape: DataShape, settings: LearnerSettings) -> dict[str, torch.Tensor]:
    """Names, shapes and types of a member's tensors, on the device `meta`: nothing is allocated."""
    with torch.device("meta"):
        return build_learner(method, shape, settings, torch.Generator()).state_dict()


def fit_to_data(learners: Iterable[Learner], data: Dataset) -> None:
    """Tell the networks which items training users interacted with and, for a choice, how often each was liked."""
    interacted_I = torch.from_numpy(data.interacted_in_training())
    for learner in learners:
        learner.network.items.known.number(interacted_I)
        if learner.head.over_items:
            learner.network.items.start_biases(_log_popularity(data, learner.head))


def _log_popularity(data: Dataset, head: Head) -> torch.Tensor:
    """log(1 + sum of the weights of an item's training rows), (I): where the biases of a choice start."""
    rows = data.training_rows
    target_N = torch.from_numpy(data.array("target")[:rows].astype(np.float32))
    weight_N = head.chosen_weight(target_N).numpy()
    total_I = np.bincount(data.array("item")[:rows], weights=weight_N, minlength=data.manifest.items)
    return torch.from_numpy(np.log1p(total_I).astype(np.float32))
