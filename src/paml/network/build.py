"""A network generated from what a data set is like: its fields, vocabulary sizes, and the items met in training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paml.data.dataset import Dataset, Side
from paml.data.schema import Kind, Schema
from paml.episodes.hashing import KEYS
from paml.errors import SettingsError, nearest
from paml.network.affinity import Affinity
from paml.network.embeddings import FieldEmbedder
from paml.network.items import ItemFactors, ItemFields, KnownItems
from paml.network.network import Network
from paml.network.user_prior import Start
from paml.training.recipe import Recipe


@dataclass(frozen=True)
class DataShape:
    """What a network is generated from: fields, vocabulary sizes, items known in training, the mean training target."""

    schema: Schema
    vocabulary: dict[str, int]
    items: int
    known_items: int
    training_mean: float

    @classmethod
    def of(cls, data: Dataset, exclude_fields: Sequence[str] = ()) -> "DataShape":
        """The shape of a prepared data set, some fields left out; reads training rows only."""
        end = int(data.array("offsets")[data.manifest.splits["train"][1]])
        mean = float(data.array("target")[:end].mean(dtype=np.float64))
        known = int(interacted_in_training(data).sum())
        return cls(data.schema.without(exclude_fields), data.manifest.vocabulary, data.manifest.items, known, mean)

    def sizes(self, side: Side) -> dict[str, int]:
        """Vocabulary sizes of one side's fields."""
        return {name.partition(".")[2]: n for name, n in self.vocabulary.items() if name.startswith(f"{side}.")}


def interacted_in_training(data: Dataset, rows_at_once: int = 1 << 20) -> np.ndarray:
    """Which items training users met, by item row; the rows are read in pieces."""
    met_I = np.zeros(data.manifest.items, dtype=bool)
    item = data.array("item")[: int(data.array("offsets")[data.manifest.splits["train"][1]])]
    for start in range(0, len(item), rows_at_once):
        met_I[item[start : start + rows_at_once]] = True
    return met_I


def build_network(shape: DataShape, recipe: Recipe, outputs: int, rng: torch.Generator) -> Network:
    """An untrained network."""

    def embedder(side: Side, width: int, *, summed: bool = False) -> FieldEmbedder:
        fields, scale = shape.schema.features(side), recipe.field_scale if summed else recipe.embedding_scale
        return FieldEmbedder(
            fields, shape.sizes(side), width, scale, rng, summed=summed, multi_pooling=recipe.multi_pooling
        )

    factors = recipe.network == "factors"
    if not factors and (recipe.prior_from_profile or recipe.prior_from_items or recipe.affinity_fields):
        raise SettingsError("a start, and ties, need item vectors", remedy="set network=factors")
    if factors and not recipe.item_embedding:
        raise SettingsError("network=factors needs the size of item vectors", remedy="set item_embedding, say to 16")
    width, size, scale = recipe.item_embedding, recipe.embedding_size, recipe.embedding_scale
    user = embedder("user", size)
    fields = embedder("item", width + outputs + recipe.prior_from_items if factors else size, summed=factors)
    context = embedder("context", size)
    items: ItemFields | ItemFactors
    if factors:
        known = KnownItems(shape.items, shape.known_items)
        own = known.vectors(fields.width, scale, rng)
        items = ItemFactors(
            fields, known, own, width, outputs, _affinity(shape, recipe, rng) if recipe.affinity_fields else None
        )
    else:
        known = KnownItems(shape.items if width or recipe.item_bias else 0, shape.known_items)
        bias = torch.zeros(shape.known_items + 1, outputs) if recipe.item_bias else None
        items = ItemFields(fields, known, known.vectors(width, scale, rng) if width else None, bias)
    profile = embedder("user", (width + 1) * outputs, summed=True) if recipe.prior_from_profile else None
    start = Start(profile, recipe.prior_from_items, width if factors else items.width, outputs, rng)
    return Network(user, items, context, start, [*recipe.hidden, outputs], rng)


def _affinity(shape: DataShape, recipe: Recipe, rng: torch.Generator) -> Affinity:
    """Random vectors for the values of the fields that tie items."""
    fields = {field.name: field for field in shape.schema.features("item") if field.kind is not Kind.NUMERIC}
    for name in recipe.affinity_fields:
        if name not in fields:
            raise SettingsError(f"affinity_fields: '{name}' is no item field with values", remedy=nearest(name, fields))
    if len(set(recipe.affinity_fields)) < len(recipe.affinity_fields):
        raise SettingsError(
            f"affinity_fields: {', '.join(recipe.affinity_fields)} names a field twice", remedy="name each field once"
        )
    size, keys = recipe.affinity_dim, dict.fromkeys(recipe.affinity_fields, KEYS + 1)
    values = FieldEmbedder(
        [fields[name] for name in recipe.affinity_fields],
        keys,
        size,
        size**-0.5,
        rng,
        multi_pooling=recipe.multi_pooling,
    )
    return Affinity(values, recipe.affinity_scale)
