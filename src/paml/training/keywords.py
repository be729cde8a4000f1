"""The settings of a recipe as keyword arguments, for editors and type checkers; written by a program."""

from collections.abc import Sequence
from typing import Literal, TypedDict


class CompareSettings(TypedDict, total=False):
    """Settings of the recipe, for all methods."""

    exclude_fields: Sequence[str] | str
    """Fields that are not inputs, such as item.year,user.zip."""
    embedding_size: int
    """Size of each field's embedding."""
    network: Literal["fields", "factors"]
    """Items as their fields side by side, or as one vector: the sum of the item's and its fields'."""
    multi_pooling: Literal["mean", "root"]
    """Lists of values as a mean, or as a sum divided by the root of their number."""
    hidden: Sequence[int] | str
    """Sizes of the hidden decision layers, such as 320,192; may be none."""
    embedding_scale: float
    """Standard deviation of the initial embeddings."""
    field_scale: float
    """The same for fields in such sums (network=factors); 0: no effect at first."""
    item_embedding: int | Literal["auto"]
    """Size of an embedding of the item itself; 0 for none."""
    affinity_fields: Sequence[str] | str | Literal["auto"]
    """Item fields such as author: a rating of one item carries over to others with the same value."""
    affinity_dim: int
    """Size of the random vectors of the values of affinity_fields."""
    affinity_scale: float
    """Initial strength of affinity, which is learned."""
    prior_from_profile: bool
    """The profile sets the prior mean of a user's weights (network=factors)."""
    prior_from_items: int | Literal["auto"]
    """Size of the vectors by which the choice of rated items sets this prior; 0 for none."""
    item_bias: bool
    """Add a learned bias per item to the outputs."""
    bias_by_count: bool
    """Scale item biases by a learned power of the number of a user's known rows."""
    start_at_mean: bool
    """Start the output bias at the training mean."""
    head: Literal["auto", "value", "classes", "click", "choice"]
    """Value (squared error) or classes (softmax over levels) for ratings, click for clicks; choice (softmax over
    all items) ranks."""
    on_scale: bool
    """Squash predicted ratings between the lowest and the highest."""
    unliked_weight: float
    """Weight of other rated items in the outer loss, where a liked one counts 1."""
    inner_steps: int
    """Gradient steps on the support set; Newton steps for ridge."""
    pseudo_count: float
    """Initial c, then learned: the inner loss is a sum over n rows / (n + c); 0 for the mean."""
    first_order: bool
    """Treat inner gradients as constants in the outer step."""
    inner_rate: float
    """Inner rate of melu and transfer, and initial rate of meta_sgd."""
    rate_scale: float
    """Largest alpha'(h): personal rate of the paml methods, prior variance of ridge."""
    memory_size: int
    """Nodes of AT-PAML's memory."""
    neighbours: int
    """Similar users looked up in training."""
    neighbours_inference: int
    """Similar users looked up in evaluation and serving."""
    kernel_delta: float
    """Delta of the Gaussian kernel exp(-delta |h - h'|^2)."""
    kernel_sigma: float
    """Sigma in the kernel weights' denominator."""
    warmup_epochs: int
    """Epochs in which AT-PAML uses a fixed rate and fills the memory."""
    warmup_rate: float
    """The fixed rate of the warm-up."""
    memory_stores: Literal["alpha", "own"]
    """What a node keeps: the user's own rate alpha'(h), or alpha (own rate plus neighbours')."""
    memory_index: Literal["exact", "kdtree", "hnsw"]
    """How neighbours are searched."""
    index_every: int
    """Batches between rebuilds of a kdtree or hnsw index."""
    user_bias_discount: float | Literal["auto"]
    """Share of a user's squared mean error that the outer loss discounts."""
    gamma: float
    """Weight of REG-PAML's regulariser."""
    taste_dropout: float
    """Share of a user's weights for item vectors left out in training (head=choice)."""
    ensemble_size: int | Literal["auto"]
    """Networks with different random initial weights; predictions are their mean."""
    merged_size: int | Literal["auto"]
    """Merge the trained networks into one with item vectors of this size, where that is possible; 0: never."""
    epochs: int | Literal["auto"]
    """Passes over the training users."""
    batch_size: int | Literal["auto"]
    """Users per outer step."""
    outer_rate: float
    """Outer learning rate beta."""
    schedule: Literal["constant", "cosine"]
    """The outer rate over the epochs: constant, or falling along a cosine."""
    optimizer: Literal["adam", "adamw"]
    """Outer optimiser."""
    weight_decay: float | Literal["auto"]
    """Weight decay in the outer step, except for biases and rates."""
    ema_decay: float
    """Weights are averaged over outer steps with this decay; 0 for none."""
    clip_norm: float
    """Largest norm of the outer gradient; 0 for no limit."""
    patience: int
    """Stop after this many epochs without improvement on validation; 0: never."""
    random_support: bool
    """Train with a random share of support rows instead of a fixed one."""
    support_share: float
    """Share of support rows in training episodes."""
    sampled_items: int
    """Items drawn per training batch for head=choice, in catalogues of more than 20,000."""
    few_shot_share: float
    """Share of training episodes with a log-uniform number of support rows, from 0 to all but one."""
    choice_part: bool
    """Also learn which items users choose, and order lists by that and the predicted rating."""
    choice_method: str
    """The method of that part; the same if empty."""


class TrainSettings(CompareSettings, total=False):
    """All settings of the recipe."""

    liked: float
    """Lowest rating that counts as liked (head=choice); 0: three quarters of the scale."""
