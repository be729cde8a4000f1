"""paml: knows what a new user likes after a handful of ratings, because every user gets their own learning rate.

>>> import paml
>>> data = paml.prepare("synthetic", out="world", users=500)
>>> run = paml.train(data, method="reg_paml", recipe="tuned", out="run")
>>> paml.evaluate(run)["mse"]
>>> user = run.adapt(profile={"age": "25"}, ratings={"3": 5, "7": 2})
>>> user.recommend(10)

Names are imported when they are first used: `import paml` alone loads neither PyTorch nor Polars.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `MODULES` says, for those who read types
    from paml.analysis.results import Results
    from paml.data.dataset import Dataset
    from paml.data.describe import describe
    from paml.data.infer.render import inspect
    from paml.data.prepare import prepare
    from paml.errors import (
        DataError,
        FormatError,
        InputError,
        PamlError,
        SettingsError,
        TrainingError,
        UnknownField,
        UnknownItem,
    )
    from paml.evaluation.scoring import summarise
    from paml.experiments.compare import compare
    from paml.experiments.evaluate import evaluate
    from paml.experiments.tuning.search import tune
    from paml.recommend.elicitation import Question
    from paml.recommend.predictor import Predictor
    from paml.recommend.requests import NewUser, Rating
    from paml.recommend.user import Recommendation, User
    from paml.training.run import Run
    from paml.training.train import train

    __version__: str

MODULES = {
    "DataError": "paml.errors",
    "Dataset": "paml.data.dataset",
    "FormatError": "paml.errors",
    "InputError": "paml.errors",
    "NewUser": "paml.recommend.requests",
    "PamlError": "paml.errors",
    "Predictor": "paml.recommend.predictor",
    "Question": "paml.recommend.elicitation",
    "Rating": "paml.recommend.requests",
    "Recommendation": "paml.recommend.user",
    "Results": "paml.analysis.results",
    "Run": "paml.training.run",
    "SettingsError": "paml.errors",
    "TrainingError": "paml.errors",
    "UnknownField": "paml.errors",
    "UnknownItem": "paml.errors",
    "User": "paml.recommend.user",
    "compare": "paml.experiments.compare",
    "describe": "paml.data.describe",
    "evaluate": "paml.experiments.evaluate",
    "inspect": "paml.data.infer.render",
    "prepare": "paml.data.prepare",
    "summarise": "paml.evaluation.scoring",
    "train": "paml.training.train",
    "tune": "paml.experiments.tuning.search",
}

__all__ = [
    "DataError",
    "Dataset",
    "FormatError",
    "InputError",
    "NewUser",
    "PamlError",
    "Predictor",
    "Question",
    "Rating",
    "Recommendation",
    "Results",
    "Run",
    "SettingsError",
    "TrainingError",
    "UnknownField",
    "UnknownItem",
    "User",
    "compare",
    "describe",
    "evaluate",
    "inspect",
    "load",
    "open_data",
    "prepare",
    "register",
    "summarise",
    "train",
    "tune",
]

REGISTRIES = {
    "method": ("paml.methods.registry", "METHOD_REGISTRY"),
    "baseline": ("paml.baselines.registry", "BASELINE_REGISTRY"),
    "source": ("paml.data.sources", "SOURCE_REGISTRY"),
    "metric": ("paml.evaluation.metrics", "METRIC_REGISTRY"),
    "rate": ("paml.methods.registry", "RATE_REGISTRY"),
    "solver": ("paml.engine.solvers", "SOLVER_REGISTRY"),
}
"""What can be registered, and where its registry is."""


def open_data(path: str | Path) -> "Dataset":
    """Open a prepared data set; an incomplete or edited one is a FormatError."""
    from paml.data.dataset import Dataset

    return Dataset.of(path)


def load(path: str | Path) -> "Run":
    """Open a trained run; an unfinished, incomplete, foreign or damaged one is a FormatError."""
    from paml.training.run import Run

    return Run.load(path)


def register(kind: str, name: str, entry: object) -> None:
    """Add a `method`, `baseline`, `source`, `metric`, `rate` or `solver` of your own to this process.

    It is then used by its name wherever paml's own are. A name that exists already, or an entry that is not what it
    should be, is a SettingsError. What should be known to every process, `paml` commands included, is declared as an
    entry point of a package instead (docs/extending.md).

    >>> from paml.evaluation.metrics import RATING, Metric, absolute_error
    >>> paml.register("metric", "deviation", Metric("deviation", "deviation", "lower", 3, RATING, absolute_error))
    """
    from paml.errors import SettingsError, nearest
    from paml.registry import Origin

    if kind not in REGISTRIES:
        raise SettingsError(f"there is no registry of '{kind}'", remedy=nearest(kind, REGISTRIES))
    module, registry = REGISTRIES[kind]
    caller = str(sys._getframe(1).f_globals.get("__name__", "__main__"))
    getattr(import_module(module), registry).register(name, entry, Origin(caller))


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if not TYPE_CHECKING:  # type checkers know every name: a misspelt one is an error to them, not `Any`

    def __getattr__(name: str) -> Any:
        """A public name, imported when it is first used (PEP 562)."""
        if name == "__version__":
            from importlib.metadata import version

            value = version("paml")
        elif name in MODULES:
            value = getattr(import_module(MODULES[name]), name)
        else:
            raise AttributeError(f"module 'paml' has no attribute '{name}'")
        globals()[name] = value  # so that this function is asked once for each name
        return value
