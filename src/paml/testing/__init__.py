"""Contract suites for methods, baselines, sources and metrics: paml's own tests use them, and so can other packages.

A suite is a class of pytest tests; a test file of another package inherits it and says what is tested:

    class TestMyMethod(MethodSuite):
        name = "my_method"

methods        trains, saves, reloads, resumes, agrees with the oracle and with the predictor
baselines      baselines that predict targets, or rank the whole catalogue: nothing is read that must not be known
sources        three tables and a schema, the same every time
metrics        one value per user, whatever the other users' rows are
worlds         small data sets, prepared once
entries        something registered for the time of a test
oracle         every method in the slow, obvious form: one user, one row after the other
choice_oracle  the same for a choice among all items
learners       a small learner in double precision and a batch of users, to be compared with the oracle

pytest is needed; `docs/extending.md` has an example of each.
"""

from paml.testing.baselines import BaselineSuite, RankerSuite
from paml.testing.choice_oracle import ChoiceOracle
from paml.testing.entries import registered
from paml.testing.methods import MethodSuite
from paml.testing.metrics import MetricSuite
from paml.testing.oracle import Oracle, OracleResult
from paml.testing.sources import SourceSuite
from paml.testing.worlds import small_world

__all__ = [
    "BaselineSuite",
    "ChoiceOracle",
    "MethodSuite",
    "MetricSuite",
    "Oracle",
    "OracleResult",
    "RankerSuite",
    "SourceSuite",
    "registered",
    "small_world",
]
