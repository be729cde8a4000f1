"""paml: knows what a new user likes after a handful of ratings, because every user gets an own learning rate.

>>> import paml
>>> data = paml.prepare("synthetic", out="world", users=500)
>>> run = paml.train(data, method="reg_paml", recipe="tuned", out="run")
>>> paml.evaluate(run)["mse"]
>>> user = run.adapt(profile={"age": "25"}, ratings={"i1": 5, "i2": 2})
>>> user.recommend(10)
"""

from importlib.metadata import version

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
from paml.experiments.tuning.search import tune
from paml.recommend.elicitation import Question
from paml.recommend.predictor import Predictor, Recommendation, User
from paml.recommend.requests import NewUser, Rating
from paml.training.loop import train
from paml.training.run import Run, evaluate

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
__version__ = version("paml")

open_data = Dataset.open
load = Run.load
