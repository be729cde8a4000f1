"""The suites of `paml.testing`; entries are registered here, so that the package need not be installed."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from paml.testing import BaselineSuite, MethodSuite, MetricSuite, Oracle, SourceSuite, registered
from paml_example.baseline import DAMPED_MEAN
from paml_example.method import BOUNDED_PAML, LEAST, bounded_rate
from paml_example.metric import WITHIN_ONE
from paml_example.source import CLANS

ENTRIES: tuple[tuple[str, str, Any], ...] = (
    ("rate", "bounded", bounded_rate),
    ("method", "bounded_paml", BOUNDED_PAML),
    ("baseline", "damped_mean", DAMPED_MEAN),
    ("source", "clans", CLANS),
    ("metric", "within1", WITHIN_ONE),
)


@pytest.fixture(scope="module", autouse=True)
def entries() -> Iterator[None]:
    with ExitStack() as stack:
        for entry in ENTRIES:
            stack.enter_context(registered(*entry))
        yield


class BoundedOracle(Oracle):
    """The rate of one user, written plainly."""

    def rate(self, b: int, *, training: bool) -> torch.Tensor:
        return LEAST * self.recipe.rate_scale + (1 - LEAST) * self.personal(self.learner.rates, self.users[b])


class TestBoundedPaml(MethodSuite):
    name = "bounded_paml"
    oracle = BoundedOracle


class TestDampedMean(BaselineSuite):
    name = "damped_mean"


class TestClans(SourceSuite):
    name = "clans"
    settings = {"members": 120, "things": 50}


class TestWithinOne(MetricSuite):
    name = "within1"
