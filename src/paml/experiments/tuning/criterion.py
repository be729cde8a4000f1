"""What trials of a search are judged by: the loss that training watches, or another metric of validation users."""

import math
from dataclasses import dataclass

from paml.data.dataset import Dataset
from paml.errors import SettingsError, nearest
from paml.evaluation.item_facts import ItemFacts
from paml.evaluation.metrics import ListMetric, Metric, headline, metrics_for
from paml.experiments.evaluate import scored_rows
from paml.training.run import Run


@dataclass(frozen=True)
class Criterion:
    """A metric, and the sign that makes lower values better, as searches minimise."""

    metric: Metric | ListMetric
    is_loss: bool
    """Whether training watches it: then every epoch has a value, and trials may be ended early."""

    @classmethod
    def find(cls, name: str | None, kind: str) -> "Criterion":
        """The metric of this name; without a name, the headline: a loss or, of choices, that of lists."""
        first = headline(kind)
        if name is None or name == first.name:
            return cls(first, isinstance(first, Metric))
        known = {metric.name: metric for metric in metrics_for(kind) if metric.about != "contents"}
        if name not in known:
            raise SettingsError(f"trials cannot be judged by '{name}'", remedy=nearest(name, known), argument="by")
        return cls(known[name], False)

    @property
    def sign(self) -> int:
        """-1 where higher values are better."""
        return 1 if self.metric.better == "lower" else -1

    def value(self, run: Run, data: Dataset) -> float:
        """What a trained run reaches on validation users, to be minimised."""
        rows, _ = scored_rows(run, data, "validation", ItemFacts.of(data))
        mean = rows[self.metric.name].drop_nans().mean()
        if not isinstance(mean, float) or not math.isfinite(mean):
            raise SettingsError(f"no validation user has a value of '{self.metric.name}'", argument="by")
        return self.sign * mean

    def shown(self, value: float | None) -> float | None:
        """A minimised value as the metric's own."""
        return None if value is None else self.sign * value
