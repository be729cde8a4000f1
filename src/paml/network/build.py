"""A network generated from the shape of a data set: fields, vocabulary sizes, and the items known in training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field as Described

from paml.data.dataset import Dataset, Side
from paml.data.schema import Field, Kind, Schema
from paml.episodes.features import InputSpec
from paml.episodes.hashing import BUCKETS
from paml.errors import SettingsError, nearest
from paml.network.affinity import Affinity
from paml.network.embeddings import FieldEmbedder
from paml.network.items import ItemFactors, ItemFields, Items, KnownItems
from paml.network.network import Network
from paml.network.user_prior import UserPrior
from paml.settings import Names, Settings, Sizes


class NetworkSettings(Settings):
    """The network's inputs and sizes."""

    exclude_fields: Names = Described((), description="fields that are not inputs, such as item.year,user.zip")
    embedding_size: int = Described(32, gt=0, description="size of each field's embedding")
    network: Literal["fields", "factors"] = Described(
        "fields",
        description="items as their fields side by side, or as one vector: the sum of the item's and its fields'",
    )
    multi_pooling: Literal["mean", "root"] = Described(
        "mean", description="lists of values as a mean, or as a sum divided by the root of their number"
    )
    hidden: Sizes = Described(
        (320, 192), description="sizes of the hidden decision layers, such as 320,192; may be none"
    )
    embedding_scale: float = Described(1.0, gt=0, description="standard deviation of the initial embeddings")
    field_scale: float = Described(
        0.0, ge=0, description="the same for fields in such sums (network=factors); 0: no effect at first"
    )
    item_embedding: int = Described(0, ge=0, description="size of an embedding of the item itself; 0 for none")
    affinity_fields: Names = Described(
        (),
        description="item fields such as author: a rating of one item carries over to others with the same value",
    )
    affinity_dim: int = Described(64, gt=0, description="size of the random vectors of the values of affinity_fields")
    affinity_scale: float = Described(2.0, gt=0, description="initial strength of affinity, which is learned")
    prior_from_profile: bool = Described(
        False, description="the profile sets the prior mean of a user's weights (network=factors)"
    )
    prior_from_items: int = Described(
        0, ge=0, description="size of the vectors by which the choice of rated items sets this prior; 0 for none"
    )
    item_bias: bool = Described(False, description="add a learned bias per item to the outputs")
    bias_by_count: bool = Described(
        False, description="scale item biases by a learned power of the number of a user's known rows"
    )
    start_at_mean: bool = Described(False, description="start the output bias at the training mean")


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
        """The shape of a prepared data set, without some fields; reads training rows only."""
        mean = float(data.array("target")[: data.training_rows].mean(dtype=np.float64))
        known = int(data.interacted_in_training().sum())
        return cls(data.schema.without(exclude_fields), data.manifest.vocabulary, data.manifest.items, known, mean)

    def sizes(self, side: Side) -> dict[str, int]:
        """Vocabulary sizes of one side's fields."""
        return {field.name: self.vocabulary.get(f"{side}.{field.name}", 0) for field in self.schema.features(side)}


def build_network(shape: DataShape, settings: NetworkSettings, outputs: int, rng: torch.Generator) -> Network:
    """An untrained network."""

    def embedder(side: Side, width: int, *, summed: bool = False) -> FieldEmbedder:
        fields, scale = shape.schema.features(side), settings.field_scale if summed else settings.embedding_scale
        pooling = settings.multi_pooling
        return FieldEmbedder(fields, shape.sizes(side), width, scale, rng, summed=summed, multi_pooling=pooling)

    factors = settings.network == "factors"
    if not factors and (settings.prior_from_profile or settings.prior_from_items or settings.affinity_fields):
        raise SettingsError("user priors and affinity need item vectors", remedy="set network=factors")
    if factors and not settings.item_embedding:
        raise SettingsError("network=factors needs the size of item vectors", remedy="set item_embedding, say to 16")
    width, size, scale = settings.item_embedding, settings.embedding_size, settings.embedding_scale
    user = embedder("user", size)
    fields = embedder("item", width + outputs + settings.prior_from_items if factors else size, summed=factors)
    context = embedder("context", size)
    items: Items
    if factors:
        known = KnownItems(shape.items, shape.known_items)
        own = known.vectors(fields.width, scale, rng)
        items = ItemFactors(fields, known, own, width, outputs, _affinity(shape, settings, rng))
    else:
        known = KnownItems(shape.items if width or settings.item_bias else 0, shape.known_items)
        bias = torch.zeros(shape.known_items + 1, outputs) if settings.item_bias else None
        items = ItemFields(fields, known, known.vectors(width, scale, rng) if width else None, bias)
    profile = embedder("user", (width + 1) * outputs, summed=True) if settings.prior_from_profile else None
    prior = UserPrior(profile, settings.prior_from_items, width if factors else items.width, outputs, rng)
    inputs = InputSpec(shape.schema, settings.affinity_fields)
    sizes = [*settings.hidden, outputs]
    return Network(inputs, user, items, context, prior, sizes, rng, bias_by_count=settings.bias_by_count)


def _affinity(shape: DataShape, settings: NetworkSettings, rng: torch.Generator) -> Affinity | None:
    """Random vectors for the values of the affinity fields; None without such fields."""
    names, size = settings.affinity_fields, settings.affinity_dim
    if not names:
        return None
    fields = {field.name: field for field in shape.schema.features("item") if field.kind is not Kind.NUMERIC}
    for name in names:
        if name not in fields:
            what = f"affinity_fields: '{name}' is not a categorical item field"
            raise SettingsError(what, remedy=nearest(name, fields))
    if len(set(names)) < len(names):
        raise SettingsError(f"affinity_fields: {', '.join(names)} names a field twice", remedy="name each field once")
    chosen: list[Field] = [fields[name] for name in names]
    buckets = dict.fromkeys(names, BUCKETS + 1)
    values = FieldEmbedder(chosen, buckets, size, size**-0.5, rng, multi_pooling=settings.multi_pooling)
    return Affinity(values, settings.affinity_scale)
