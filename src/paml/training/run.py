"""A run on disk: a trained learner and everything needed to use it again.

RUN/settings.json        method, recipe, seed, what it was trained on (fingerprint), how training ended
RUN/weights.safetensors  parameters, and AT-PAML's memory
RUN/vocab.json           the data set's vocabulary
RUN/catalogue.parquet    all items, and how often training users rated them
RUN/reference_users.parquet   groups, rates and embeddings of training users, without ids, for rate profiles
RUN/metrics.jsonl        one line per epoch
RUN/rows.parquet         the last evaluation, one row per user
RUN/resume/              the state of an unfinished training
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import torch
from pydantic import Field, ValidationError

from paml.data.dataset import Dataset, Vocabulary
from paml.data.schema import Schema
from paml.errors import FormatError
from paml.evaluation.scoring import Split, evaluate_ensemble, summarise
from paml.files import as_model, read_json, write_table, write_text
from paml.methods.learner import Ensemble
from paml.methods.registry import build_ensemble
from paml.network.build import DataShape
from paml.recommend.catalogue import Catalogue
from paml.recommend.predictor import Predictor, User
from paml.recommend.rate_profile import ReferenceUsers
from paml.recommend.requests import Rating, Values
from paml.settings import Settings
from paml.training import checkpoint
from paml.training.recipe import Recipe

FORMAT = 4
PARTS = ("weights.safetensors", "vocab.json", "catalogue.parquet", "reference_users.parquet")


class RunSettings(Settings):
    """What a run is, apart from its weights."""

    format: int = FORMAT
    created_by: str
    method: str
    recipe_name: str
    recipe: Recipe
    seed: int
    data_path: str
    fingerprint: str
    data_schema: Schema
    vocabulary: dict[str, int]
    items: int
    known_items: int
    training_mean: float
    major_above: int
    """A user with more common values than this is a major user."""
    summary: dict[str, Any] = Field(default_factory=dict)
    """How training ended: epochs, the best one and its validation metric, seconds; recall of the memory's index."""

    def identity(self) -> str:
        """SHA-256 of what the weights belong to: everything except the data's path and how training ended."""
        covered = self.model_dump_json(exclude={"summary", "data_path", "created_by"})
        return hashlib.sha256(covered.encode()).hexdigest()

    def shape(self) -> DataShape:
        """What the network is generated from."""
        return DataShape(self.data_schema, self.vocabulary, self.items, self.known_items, self.training_mean)


@dataclass(frozen=True)
class Run:
    """A trained ensemble with its settings; `paml.train` and `paml.load` return one.

    >>> run = paml.load(run.path)
    >>> user = run.adapt(profile={"age": "25"}, ratings={"3": 5, "7": 2})
    >>> len(user.recommend(10))
    10
    """

    path: Path
    settings: RunSettings
    ensemble: Ensemble

    @classmethod
    def load(cls, path: str | Path) -> "Run":
        """Open a run folder; an unfinished, incomplete, foreign or damaged one is a FormatError."""
        path = Path(path)
        settings = read_settings(path)
        weights = path / PARTS[0]
        if not weights.exists():
            raise FormatError("training has not finished", where=path, remedy="resume the training")
        for name in PARTS:
            if not (path / name).exists():
                raise FormatError(f"is incomplete: '{name}' is missing", where=path, remedy="train again")
        tensors, values = checkpoint.load(weights)
        if values.get("identity") != settings.identity():
            raise FormatError(
                "weights and settings do not belong together: one was replaced or edited",
                where=path,
                remedy="train again",
            )
        ensemble = build_ensemble(settings.method, settings.shape(), settings.recipe, torch.Generator())
        load_state(ensemble, tensors, weights)
        return cls(path, settings, ensemble)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The values of all fields, in order of their codes."""
        file = self.path / "vocab.json"
        try:
            return Vocabulary.model_validate_json(file.read_text(encoding="utf-8"))
        except (OSError, ValidationError, UnicodeDecodeError):
            raise FormatError("is damaged", where=file, remedy="train again") from None

    @cached_property
    def predictor(self) -> Predictor:
        """The run in use; only the run folder is needed."""
        settings = self.settings
        catalogue = Catalogue.load(self.path / "catalogue.parquet", settings.data_schema)
        if len(catalogue) != settings.items:
            what = f"has {len(catalogue):,} items, the run {settings.items:,}"
            raise FormatError(what, where=self.path / "catalogue.parquet", remedy="train again")
        width = self.ensemble.members[0].network.user.width
        reference_users = ReferenceUsers.load(self.path / "reference_users.parquet", width)
        return Predictor(
            self.ensemble,
            settings.data_schema,
            self.vocabulary,
            catalogue,
            reference_users,
            major_above=settings.major_above,
        )

    def adapt(
        self, profile: Values | None = None, ratings: Mapping[str, float] | Sequence[Rating] | None = None
    ) -> User:
        """Adapt to a new user, given a profile and a few ratings; either may be missing.

        `profile` has values by field name; `ratings` has values by item id, or is a list of `paml.Rating`.

        >>> user = run.adapt(profile={"gender": "F", "age": 25}, ratings={"3": 5, "7": 2})
        >>> len(user.recommend(10))
        10
        """
        return self.predictor.adapt(profile, ratings)

    def data(self, path: str | Path | None = None) -> Dataset:
        """The data set that the run was trained on; any other is refused."""
        data = Dataset.open(path or self.settings.data_path)
        if data.fingerprint != self.settings.fingerprint:
            raise FormatError(
                f"has fingerprint {data.fingerprint[:12]}, the run was trained on {self.settings.fingerprint[:12]}",
                where=data.path,
                remedy="give the data set it was trained on, or train again",
            )
        return data

    def evaluate(self, data: Dataset | None = None, split: Split = "test") -> pl.DataFrame:
        """One row per user of a split; `paml.summarise` condenses them."""
        return evaluate_ensemble(self.ensemble, self.data() if data is None else self.data(data.path), split)


def evaluate(run: str | Path | Run, data: Dataset | str | Path | None = None, split: Split = "test") -> dict[str, Any]:
    """Adapt to every user of a split, score their query rows, and return means over users (see `paml.summarise`).

    `run` is a run or its folder, which gets `rows.parquet` with one row per user. `data` is the data set that it was
    trained on, needed only if that was moved; `split` is `test`, `validation` or `train`.

    >>> paml.evaluate(run)["mse"]["all"]
    """
    run = run if isinstance(run, Run) else Run.load(run)
    opened = run.data(data.path if isinstance(data, Dataset) else data)
    rows = run.evaluate(opened, split)
    write_table(run.path / "rows.parquet", rows)
    settings = run.settings
    return {
        "run": str(run.path),
        "method": settings.method,
        "recipe": settings.recipe_name,
        "seed": settings.seed,
        "split": split,
        "fingerprint": settings.fingerprint,
        **summarise(rows),
    }


def read_settings(path: Path) -> RunSettings:
    """The settings of a run folder."""
    file, remedy = path / "settings.json", "give a folder made by 'paml train'"
    missing = FormatError("no such run", where=path, remedy=remedy)
    return as_model(RunSettings, read_json(file, remedy, missing=missing), file, "train again")


def write_settings(path: Path, settings: RunSettings) -> None:
    """Store the settings, atomically."""
    write_text(path / "settings.json", settings.model_dump_json(indent=1) + "\n")


def load_state(ensemble: Ensemble, tensors: dict[str, torch.Tensor], where: Path) -> None:
    """Load tensors into an ensemble; missing, unexpected or misshapen ones are a FormatError."""
    try:
        ensemble.load_state_dict(tensors)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise FormatError(f"does not fit the run's settings ({first})", where=where, remedy="train again") from None
