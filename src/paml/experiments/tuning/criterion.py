"""What trials of a search are judged by: the loss that training watches, or another metric of validation users."""

import math
from dataclasses import dataclass

from paml.data.dataset import Dataset
from paml.errors import SettingsError, nearest
from paml.evaluation.item_facts import ItemFacts
from paml.evaluation.metrics import ListMetric, Metric, headline, list_metrics, metrics_for
from paml.experiments.evaluate import scored_rows
from paml.training.recipe import CHOICE
from paml.training.run import Run

CHOICE_LOSS = "choice loss"
"""What training watches with head=choice: -log p of validation users' choices."""


@dataclass(frozen=True)
class Criterion:
    """A metric, and the sign that makes lower values better, as searches minimise; or the loss of a choice."""

    metric: Metric | ListMetric | None
    is_loss: bool
    """Whether training watches it: then every epoch has a value, and trials may be ended early."""

    @classmethod
    def find(cls, name: str | None, kind: str, head: str) -> "Criterion":
        """The metric of this name; without a name, what training watches or, of choices, the headline, that of lists.

        With head=choice on ratings or clicks, training watches a loss that is no metric, and there are lists alone.
        """
        ranks = head == CHOICE and kind != CHOICE
        first = headline(kind)
        if ranks and name is None:
            return cls(None, is_loss=True)
        if name is None or (name == first.name and not ranks):
            return cls(first, isinstance(first, Metric))
        among = list_metrics(kind) if ranks else metrics_for(kind)
        known = {metric.name: metric for metric in among if metric.about != "contents"}
        if name not in known:
            raise SettingsError(f"trials cannot be judged by '{name}'", remedy=nearest(name, known), argument="by")
        return cls(known[name], is_loss=False)

    @property
    def name(self) -> str:
        """What it is called."""
        return CHOICE_LOSS if self.metric is None else self.metric.name

    @property
    def sign(self) -> int:
        """-1 where higher values are better."""
        return 1 if self.metric is None or self.metric.better == "lower" else -1

    def value(self, run: Run, data: Dataset) -> float:
        """What a trained run reaches on validation users, to be minimised."""
        rows, _ = scored_rows(run, data, "validation", ItemFacts.of(data))
        mean = rows[self.name].drop_nans().mean()
        if not isinstance(mean, float) or not math.isfinite(mean):
            raise SettingsError(f"no validation user has a value of '{self.name}'", argument="by")
        return self.sign * mean

    def shown(self, value: float | None) -> float | None:
        """A minimised value as the metric's own."""
        return None if value is None else self.sign * value
