"""The methods, as compositions: where the inner rate comes from, and what the meta-loss is.

| method   | rate                                       | meta-loss                                    |
|----------|--------------------------------------------|----------------------------------------------|
| melu     | fixed                                      | query loss                                   |
| meta_sgd | one per parameter, learned                 | query loss                                   |
| transfer | fixed, in fine-tuning only                 | pooled loss, no inner step in training       |
| paml     | alpha'(h)                                  | query loss                                   |
| at_paml  | alpha'(h) + similar users' rates (memory)  | query loss                                   |
| reg_paml | alpha'(h)                                  | query loss + gamma * gradient norm^2 * alpha |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paml.data.prepared import PreparedData, Side
from paml.data.schema import Schema
from paml.errors import SettingsError, nearest
from paml.heads import head_for
from paml.learner import Learner
from paml.memory import MemoryRate
from paml.model import FieldEmbedder, Network
from paml.objectives import Objective, pooled_loss, query_loss, regularised_query_loss
from paml.rates import FixedRate, ParameterRate, PersonalRate, RateSource
from paml.recipe import Recipe

RateMaker = Callable[[Network, Recipe, torch.Generator], RateSource]
ObjectiveMaker = Callable[[Recipe], Objective]


@dataclass(frozen=True)
class Method:
    """A line of the table above."""

    summary: str
    rate: RateMaker
    objective: ObjectiveMaker


def _fixed(network: Network, recipe: Recipe, rng: torch.Generator) -> RateSource:
    return FixedRate(recipe.inner_rate)


def _per_parameter(network: Network, recipe: Recipe, rng: torch.Generator) -> RateSource:
    return ParameterRate(network.decision.theta(), recipe.inner_rate)


def _personal(network: Network, recipe: Recipe, rng: torch.Generator) -> PersonalRate:
    return PersonalRate(network.user.width, recipe.rate_scale, rng)


def _with_memory(network: Network, recipe: Recipe, rng: torch.Generator) -> RateSource:
    return MemoryRate(_personal(network, recipe, rng), network.user.width, recipe)


METHODS: dict[str, Method] = {
    "melu": Method("MAML with one fixed rate", _fixed, lambda recipe: query_loss),
    "meta_sgd": Method("one learned rate per parameter", _per_parameter, lambda recipe: query_loss),
    "transfer": Method("pooled training, fine-tuning per user", _fixed, lambda recipe: pooled_loss),
    "paml": Method("a rate per user", _personal, lambda recipe: query_loss),
    "at_paml": Method("a rate per user, with similar users' rates", _with_memory, lambda recipe: query_loss),
    "reg_paml": Method("a rate per user, regularised", _personal, lambda recipe: regularised_query_loss(recipe.gamma)),
}


def find_method(name: str) -> Method:
    """The method called `name`, or an error that lists the known ones."""
    if name not in METHODS:
        raise SettingsError(f"unknown method '{name}'", remedy=nearest(name, METHODS))
    return METHODS[name]


@dataclass(frozen=True)
class DataShape:
    """What a network is generated from: fields, vocabulary sizes, items known in training, the mean training target."""

    schema: Schema
    vocabulary: dict[str, int]
    items: int
    known_items: int
    training_mean: float

    @classmethod
    def of(cls, data: PreparedData, leave_out: Sequence[str] = ()) -> "DataShape":
        """The shape of a prepared data set, some fields left out; reads training rows only."""
        end = int(data.array("offsets")[data.manifest.splits["train"][1]])
        mean = float(data.array("target")[:end].mean(dtype=np.float64))
        known = int(met_in_training(data).sum())
        return cls(data.schema.without(leave_out), data.manifest.vocabulary, data.manifest.items, known, mean)


def build_learner(method: str, shape: DataShape, recipe: Recipe, rng: torch.Generator) -> Learner:
    """An untrained learner, generated from the schema and the vocabulary sizes."""
    head = head_for(recipe.head, shape.schema.target)
    with_items = bool(recipe.item_embedding or recipe.item_bias)

    def embedder(side: Side) -> FieldEmbedder:
        sizes = {name.partition(".")[2]: n for name, n in shape.vocabulary.items() if name.startswith(f"{side}.")}
        return FieldEmbedder(shape.schema.features(side), sizes, recipe.embedding_size, recipe.embedding_scale, rng)

    network = Network(
        embedder("user"),
        embedder("item"),
        embedder("context"),
        recipe.hidden,
        head.outputs,
        rng=rng,
        items=shape.items if with_items else 0,
        known_items=shape.known_items,
        item_embedding=recipe.item_embedding,
        item_bias=recipe.item_bias,
        scale=recipe.embedding_scale,
    )
    if recipe.start_at_mean:
        with torch.no_grad():
            network.decision.shared[-1][-1].copy_(head.start(shape.training_mean))
    rates = find_method(method).rate(network, recipe, rng)
    return Learner(network, rates, head, steps=recipe.inner_steps, first_order=recipe.first_order)


def fit_to_data(learner: Learner, data: PreparedData) -> None:
    """Number the items that training users met 1, 2, ...; the others share 0, "unknown"."""
    codes_I = learner.network.item_codes_I
    if len(codes_I):
        met = torch.from_numpy(np.flatnonzero(met_in_training(data)))
        codes_I[met] = torch.arange(1, len(met) + 1)


def met_in_training(data: PreparedData, rows_at_once: int = 1 << 20) -> np.ndarray:
    """Which items training users met, by item row; the rows are read in pieces."""
    met_I = np.zeros(data.manifest.items, dtype=bool)
    item = data.array("item")[: int(data.array("offsets")[data.manifest.splits["train"][1]])]
    for start in range(0, len(item), rows_at_once):
        met_I[item[start : start + rows_at_once]] = True
    return met_I
