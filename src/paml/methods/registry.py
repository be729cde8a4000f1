"""The methods, as compositions: where the inner rate comes from, what the meta-loss is, and how the inner problem ends.

| method   | rate                                       | meta-loss                                    | inner   |
|----------|--------------------------------------------|----------------------------------------------|---------|
| melu     | fixed                                      | query loss                                   | stepped |
| meta_sgd | one per parameter, learned                 | query loss                                   | stepped |
| transfer | fixed, in fine-tuning only                 | pooled loss, no inner step in training       | stepped |
| paml     | alpha'(h)                                  | query loss                                   | stepped |
| at_paml  | alpha'(h) + similar users' rates (memory)  | query loss                                   | stepped |
| reg_paml | alpha'(h)                                  | query loss + gamma * gradient norm^2 * alpha | stepped |
| ridge    | alpha'(h), the variance of the prior       | query loss                                   | solved  |
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch

from paml.data.dataset import Dataset
from paml.engine.heads import ClickHead, Head, ValueHead, head_for
from paml.engine.solvers import ClosedForm, GradientSteps, Inner
from paml.errors import SettingsError, nearest
from paml.methods.learner import Ensemble, Learner
from paml.methods.memory import MemoryRate
from paml.methods.objectives import Objective, pooled_loss, query_loss, regularised_query_loss
from paml.methods.rates import FixedRate, ParameterRate, PersonalRate, RateSource
from paml.network.build import DataShape, build_network, interacted_in_training
from paml.network.network import Network
from paml.training.recipe import Recipe

RateMaker = Callable[[Network, Recipe, torch.Generator], RateSource]
ObjectiveMaker = Callable[[Recipe], Objective]


@dataclass(frozen=True)
class Method:
    """A line of the table above."""

    label: str
    """For tables."""
    summary: str
    rate: RateMaker
    objective: ObjectiveMaker
    solved: bool = False
    """Whether the inner problem is solved instead of stepped."""


def _fixed(network: Network, recipe: Recipe, rng: torch.Generator) -> RateSource:
    return FixedRate(recipe.inner_rate)


def _per_parameter(network: Network, recipe: Recipe, rng: torch.Generator) -> RateSource:
    return ParameterRate(network.decision.theta(), recipe.inner_rate)


def _personal(network: Network, recipe: Recipe, rng: torch.Generator) -> PersonalRate:
    return PersonalRate(network.user.width, recipe.rate_scale, rng)


def _with_memory(network: Network, recipe: Recipe, rng: torch.Generator) -> RateSource:
    return MemoryRate(_personal(network, recipe, rng), network.user.width, recipe)


def _query_loss(recipe: Recipe) -> Objective:
    return partial(query_loss, user_bias_discount=recipe.user_bias_discount)


def _regularised(recipe: Recipe) -> Objective:
    return regularised_query_loss(recipe.gamma, recipe.user_bias_discount)


METHODS: dict[str, Method] = {
    "melu": Method("MeLU", "MAML with one fixed rate", _fixed, _query_loss),
    "meta_sgd": Method("Meta-SGD", "one learned rate per parameter", _per_parameter, _query_loss),
    "transfer": Method(
        "transfer learning", "pooled training, fine-tuning per user", _fixed, lambda recipe: pooled_loss
    ),
    "paml": Method("PAML", "a rate per user", _personal, _query_loss),
    "at_paml": Method("AT-PAML", "a rate per user, with similar users' rates", _with_memory, _query_loss),
    "reg_paml": Method("REG-PAML", "a rate per user, regularised", _personal, _regularised),
    "ridge": Method(
        "closed-form ridge", "the last layer solved, a prior per user", _personal, _query_loss, solved=True
    ),
}


def methods_of(recipe: str) -> tuple[str, ...]:
    """What a comparison takes unless told otherwise: all methods, with the recipe `paper` those of the paper."""
    return tuple(name for name, method in METHODS.items() if recipe != "paper" or not method.solved)


def find_method(name: str) -> Method:
    """The method called `name`, or an error that lists the known ones."""
    if name not in METHODS:
        raise SettingsError(f"unknown method '{name}'", remedy=nearest(name, METHODS))
    return METHODS[name]


def build_learner(method: str, shape: DataShape, recipe: Recipe, rng: torch.Generator) -> Learner:
    """An untrained learner, generated from the schema and the vocabulary sizes."""
    head = head_for(recipe.head, shape.schema.target, squashed=recipe.on_scale)
    found = find_method(method)
    inner = _inner(found, head, recipe)
    if recipe.user_bias_discount and not isinstance(head, ValueHead):
        raise SettingsError(
            "user_bias_discount needs a squared error", remedy="use head=value, or set user_bias_discount=0"
        )
    network = build_network(shape, recipe, head.outputs, rng)
    if recipe.start_at_mean:
        with torch.no_grad():
            network.decision.shared[-1][-1].copy_(head.start(shape.training_mean))
    return Learner(network, found.rate(network, recipe, rng), inner, head)


def build_ensemble(method: str, shape: DataShape, recipe: Recipe, rng: torch.Generator) -> Ensemble:
    """As many untrained learners as the recipe says."""
    return Ensemble([build_learner(method, shape, recipe, rng) for _ in range(recipe.ensemble_size)])


def _inner(method: Method, head: Head, recipe: Recipe) -> Inner:
    if not method.solved:
        return GradientSteps(head, recipe.inner_steps, recipe.pseudo_count, first_order=recipe.first_order)
    if not isinstance(head, ValueHead | ClickHead):
        raise SettingsError(f"head '{recipe.head}' has no closed form", remedy="use head=value")
    return ClosedForm(head, recipe.inner_steps)


def fit_to_data(learners: Iterable[Learner], data: Dataset) -> None:
    """Tell the networks which items training users met."""
    met_I = torch.from_numpy(interacted_in_training(data))
    for learner in learners:
        learner.network.items.known.number(met_I)
