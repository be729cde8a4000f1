"""Recipes: all settings of a training run, typed; named ones lie as TOML in `recipes/`, others in files of your own.

A recipe file has settings at the top, and tables `[method.NAME]`, `[target.KIND]` and `[source.NAME]` for what differs
by method, by kind of target (rating, click) and by data set; later ones have the last word, and the very last has
`[source.NAME.method.NAME]`.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from paml.errors import SettingsError, nearest
from paml.settings import Settings, build, read_toml


def _parse_list(value: Any) -> Any:
    """`"320,192"` -> two parts."""
    return [part for part in value.split(",") if part] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_parse_list)]
Sizes = Annotated[tuple[Annotated[int, Field(gt=0)], ...], BeforeValidator(_parse_list)]
TABLES = ("method", "target", "source")


class Recipe(Settings):
    """Settings of a training run; the defaults are the paper's table of hyper-parameters (Tab. 9)."""

    exclude_fields: Names = Field((), description="fields that are no inputs, such as item.year,user.zip")
    embedding_size: int = Field(32, gt=0, description="size of each field's embedding")
    network: Literal["fields", "factors"] = Field(
        "fields", description="items as their fields side by side, or as one vector, the sum of own and fields' vectors"
    )
    multi_pooling: Literal["mean", "root"] = Field(
        "mean", description="lists of values as a mean, or as a sum divided by the root of their number"
    )
    hidden: Sizes = Field((320, 192), description="sizes of the hidden decision layers, such as 320,192; may be none")
    head: Literal["auto", "value", "classes", "click"] = Field(
        "auto", description="value (squared error) or classes (softmax over levels) for ratings, click for clicks"
    )
    on_scale: bool = Field(False, description="press predicted ratings between the lowest and the highest")
    embedding_scale: float = Field(1.0, gt=0, description="standard deviation of the initial embeddings")
    field_scale: float = Field(
        0.0, ge=0, description="the same of the fields' parts of sums (network=factors); 0: they say nothing at first"
    )
    item_embedding: int = Field(0, ge=0, description="size of an embedding of the item itself; 0 for none")
    affinity_fields: Names = Field(
        (),
        description="item fields such as author: what a user's rating of one item says of others with the same value",
    )
    affinity_dim: int = Field(
        64, gt=0, description="size of the random vectors that stand for the values of affinity_fields"
    )
    affinity_scale: float = Field(2.0, gt=0, description="how strong ties are at first; it is learned")
    prior_from_profile: bool = Field(False, description="the profile says where a user starts (network=factors)")
    prior_from_items: int = Field(
        0, ge=0, description="size of vectors by which the choice of rated items says where a user starts; 0 for none"
    )
    item_bias: bool = Field(False, description="add a learned bias per item to the outputs")
    start_at_mean: bool = Field(False, description="start the output bias at the training mean")

    inner_rate: float = Field(1e-5, ge=0, description="inner rate of melu and transfer, and Meta-SGD's start")
    rate_scale: float = Field(
        1e-3, gt=0, description="largest alpha'(h): personal rate of the paml methods, prior variance of ridge"
    )
    inner_steps: int = Field(1, ge=0, description="gradient steps on the support set; Newton steps of ridge")
    pseudo_count: float = Field(
        0.0, ge=0, description="start of a learned c: the inner loss is a sum over n rows / (n + c); 0 for the mean"
    )
    first_order: bool = Field(False, description="treat inner gradients as constants in the outer step")
    user_bias_discount: float = Field(
        0.0, ge=0, lt=1, description="share of a user's squared mean error that the outer loss leaves out"
    )
    gamma: float = Field(1e-3, ge=0, description="weight of REG-PAML's regulariser")

    memory_size: int = Field(10_000, gt=0, description="nodes of AT-PAML's memory")
    neighbours: int = Field(20, gt=0, description="similar users looked up in training")
    neighbours_inference: int = Field(5, gt=0, description="similar users looked up in evaluation and serving")
    kernel_delta: float = Field(2.0, gt=0, description="delta of the Gaussian kernel exp(-delta |h - h'|^2)")
    kernel_sigma: float = Field(1e-5, gt=0, description="sigma in the kernel weights' denominator")
    warmup_epochs: int = Field(1, ge=0, description="epochs in which AT-PAML uses a fixed rate and fills the memory")
    warmup_rate: float = Field(5e-4, ge=0, description="the fixed rate of the warm-up")
    memory_stores: Literal["alpha", "own"] = Field(
        "own", description="what a node keeps: only the own rate alpha'(h), or alpha (own rate plus neighbours')"
    )
    memory_index: Literal["exact", "kdtree", "hnsw"] = Field("exact", description="how neighbours are searched")
    index_every: int = Field(50, gt=0, description="batches between rebuilds of a kdtree or hnsw index")

    epochs: int = Field(20, ge=0, description="passes over the training users")
    batch_size: int = Field(32, gt=0, description="users per outer step")
    outer_rate: float = Field(5e-5, gt=0, description="outer learning rate beta")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="the outer rate over the epochs: as it is, or falling along a cosine"
    )
    optimizer: Literal["adam", "adamw"] = Field("adam", description="outer optimiser")
    weight_decay: float = Field(0.0, ge=0, description="weight decay in the outer step, but of biases and rates")
    ensemble_size: int = Field(
        1, gt=0, description="networks that differ in their random start; predictions are their mean"
    )
    ema_decay: float = Field(
        0.0, ge=0, lt=1, description="weights are averaged over outer steps with this decay; 0 for none"
    )
    clip_norm: float = Field(0.0, ge=0, description="largest norm of the outer gradient; 0 for no limit")
    patience: int = Field(0, ge=0, description="stop after this many epochs without a better validation; 0 for never")
    random_support: bool = Field(False, description="train with a random share of support rows instead of a fixed one")
    support_share: float = Field(0.8, gt=0, lt=1, description="share of support rows in training episodes")


def recipe_names() -> list[str]:
    """The named recipes that come with the package."""
    entries = files("paml.training").joinpath("recipes").iterdir()
    return sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml"))


def load_recipe(
    recipe: str | Path, method: str, overrides: Mapping[str, Any], source: str = "", target: str = "rating"
) -> Recipe:
    """A recipe, by name or as a .toml file, as it is for a method and a data set, some settings replaced."""
    values = _read(recipe)
    tables = {kind: values.pop(kind, {}) for kind in TABLES}
    for kind, name in zip(TABLES, (method, target, source), strict=True):
        values |= tables[kind].get(name, {})
    values |= values.pop("method", {}).get(method, {})
    return build(Recipe, {**values, **overrides})


def recipe_digest(recipe: str | Path) -> str:
    """SHA-256 of a recipe's content, by which another recipe of the same name is noticed."""
    return hashlib.sha256(json.dumps(_read(recipe), sort_keys=True).encode()).hexdigest()


def recipe_label(recipe: str | Path) -> str:
    """A recipe's name, or that of its file: a part of folder names."""
    return Path(recipe).name.removesuffix(".toml")


def _read(recipe: str | Path) -> dict[str, Any]:
    """What a recipe has, a file of somebody's own being checked as a whole: for other methods and sources, too."""
    if not str(recipe).endswith(".toml"):
        if recipe not in recipe_names():
            raise SettingsError(f"unknown recipe '{recipe}'", remedy=nearest(str(recipe), recipe_names()))
        return tomllib.loads(files("paml.training").joinpath("recipes", f"{recipe}.toml").read_text(encoding="utf-8"))
    path = Path(recipe)
    values = read_toml(path)
    common = {name: value for name, value in values.items() if name not in TABLES}
    parts = [common]
    for kind in TABLES:
        for name, table in _tables(values, kind, kind, path).items():
            within = _tables(table, "method", f"{kind}.{name}.method", path) if kind == "source" else {}
            own = {setting: value for setting, value in table.items() if not within or setting != "method"}
            parts += [{**common, **own}, *({**common, **own, **one} for one in within.values())]
    for part in parts:
        try:
            build(Recipe, part)
        except SettingsError as error:
            raise SettingsError(error.what, where=path, remedy=error.remedy) from None
    return values


def _tables(values: Mapping[str, Any], key: str, name: str, path: Path) -> dict[str, dict[str, Any]]:
    """The tables under a key; what is there must be tables."""
    tables = values.get(key, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SettingsError(f"'{name}' is not a table of tables", where=path, remedy=f"write [{name}.NAME]")
    return tables
