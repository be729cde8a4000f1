"""paml: knows what a new user likes after a handful of ratings, because every user gets their own learning rate.

>>> import paml
>>> data = paml.prepare("synthetic", out="world", users=500)
>>> run = paml.train(data, method="reg_paml", recipe="tuned", out="run")
>>> paml.evaluate(run)["mse"]
>>> user = run.adapt(profile={"age": "25"}, ratings={"3": 5, "7": 2})
>>> user.recommend(10)

Names are imported when they are first used: `import paml` alone loads neither PyTorch nor Polars.
"""

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
    "summarise",
    "train",
    "tune",
]


def open_data(path: str | Path) -> "Dataset":
    """Open a prepared data set; an incomplete or edited one is a FormatError."""
    from paml.data.dataset import Dataset

    return Dataset.of(path)


def load(path: str | Path) -> "Run":
    """Open a trained run; an unfinished, incomplete, foreign or damaged one is a FormatError."""
    from paml.training.run import Run

    return Run.load(path)


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
