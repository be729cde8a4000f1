"""What holds for every metric, whoever wrote it."""

from typing import ClassVar

import numpy as np
import pytest

from paml.evaluation.item_facts import ItemFacts
from paml.evaluation.metrics import METRIC_REGISTRY, AnyMetric, ExposureMetric, Metric, probe
from paml.evaluation.ranking import LENGTH, Lists

USERS, ITEMS = 6, 30


def scale_of(metric: Metric) -> tuple[float, float]:
    """The lowest and the highest target that it is given here: of clicks if it measures these, else of ratings."""
    return (0.0, 1.0) if "click" in metric.targets else (1.0, 5.0)


def some_rows(metric: Metric) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets, predictions and rows per user, on the metric's scale."""
    (low, high), rng = scale_of(metric), np.random.default_rng(0)
    count_U = rng.integers(2, 8, size=USERS)
    target_N = rng.integers(int(low), int(high) + 1, size=count_U.sum()).astype(np.float64)
    return target_N, low + (high - low) * rng.uniform(0.05, 0.95, size=len(target_N)), count_U


def some_lists() -> tuple[Lists, ItemFacts]:
    """Lists of some users, and what is known about the items."""
    rng = np.random.default_rng(0)
    item_UI = np.stack([rng.permutation(ITEMS) for _ in range(USERS)])
    rated_UI = rng.random((USERS, ITEMS)) < 0.3
    relevant_UI = rated_UI & (rng.random((USERS, ITEMS)) < 0.5)
    first_U = np.where(relevant_UI.any(axis=1), relevant_UI.argmax(axis=1) + 1, 0)
    cut = np.s_[:, :LENGTH]
    lists = Lists(item_UI[cut], rated_UI[cut], relevant_UI[cut], relevant_UI.sum(axis=1), first_U)
    return lists, ItemFacts(rng.integers(0, 20, size=ITEMS), 20, rng.integers(1, 4, size=ITEMS), np.ones(ITEMS, int))


def same(left: np.ndarray, right: np.ndarray) -> bool:
    """Equal values, undefined for the same users."""
    return np.allclose(left, right, rtol=1e-12, equal_nan=True)


class MetricSuite:
    """A metric by its `name`."""

    name: ClassVar[str] = ""

    @pytest.fixture
    def metric(self) -> AnyMetric:
        """The metric; paml's own tests give several."""
        return METRIC_REGISTRY.find(self.name)

    def test_is_described_and_computes_one_value_per_user(self, metric: AnyMetric) -> None:
        """What the registry checks before it takes an entry."""
        assert probe(metric.name, metric) is None
        assert metric.label

    def test_a_users_value_depends_on_the_users_rows_alone(self, metric: AnyMetric) -> None:
        """Computed alone, among others, and among others in another order."""
        if isinstance(metric, ExposureMetric):
            return  # about all lists together
        if isinstance(metric, Metric):
            target_N, prediction_N, count_U = some_rows(metric)
            together = metric.compute(target_N, prediction_N, count_U)
            parts = np.split(np.arange(len(target_N)), np.cumsum(count_U)[:-1])
            alone = [metric.compute(target_N[part], prediction_N[part], np.array([len(part)])) for part in parts]
            backwards = np.concatenate(parts[::-1])
            turned = metric.compute(target_N[backwards], prediction_N[backwards], count_U[::-1])
        else:
            lists, facts = some_lists()
            together = metric.compute(lists, facts)
            alone = [metric.compute(lists.of(np.array([user])), facts) for user in range(USERS)]
            turned = metric.compute(lists.of(np.arange(USERS)[::-1]), facts)
        assert same(np.concatenate(alone), together)
        assert same(turned[::-1], together)

    def test_nothing_is_changed_and_the_same_comes_out_again(self, metric: AnyMetric) -> None:
        """A metric is a pure function."""
        if isinstance(metric, Metric):
            given = some_rows(metric)
            once, again = metric.compute(*given), metric.compute(*given)
            assert all(np.array_equal(left, right) for left, right in zip(given, some_rows(metric), strict=True))
        else:
            given_lists, facts = some_lists()
            once, again = (np.asarray(metric.compute(given_lists, facts)) for _ in range(2))
            assert all(np.array_equal(vars(given_lists)[name], value) for name, value in vars(some_lists()[0]).items())
        assert same(once, again)

    def test_better_predictions_are_not_worse(self, metric: AnyMetric) -> None:
        """Predictions near the targets have a better mean than predictions at the other end of the scale."""
        if not isinstance(metric, Metric):
            return
        (target_N, _, count_U), (low, high) = some_rows(metric), scale_of(metric)
        mirrored_N, middle = low + high - target_N, (low + high) / 2
        near_N, far_N = (middle + 0.9 * (values_N - middle) for values_N in (target_N, mirrored_N))
        good, bad = (np.nanmean(metric.compute(target_N, values_N, count_U)) for values_N in (near_N, far_N))
        assert good < bad if metric.better == "lower" else good > bad
