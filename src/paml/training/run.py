"""A run on disk: a trained learner and everything needed to use it again.

RUN/settings.json        method, recipe, seed, what it was trained on (fingerprint), how training ended
RUN/weights.safetensors  parameters, and AT-PAML's memory
RUN/vocab.json           the data set's vocabulary
RUN/catalogue.parquet    all items, and how often training users rated them
RUN/reference_users.parquet   groups, rates and embeddings of training users, without ids, for rate profiles
RUN/choice/              the choice part, if there is one: settings, weights and metrics of its own
RUN/preference.safetensors    with a choice part: what else lists are ordered by, and the weights of all of it
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
from paml.episodes.batches import Loader
from paml.errors import FormatError
from paml.evaluation.ranking import Rank
from paml.evaluation.scoring import CatalogueScorer, Split, evaluate_ensemble
from paml.files import as_model, read_json, write_text
from paml.methods.learner import Ensemble
from paml.methods.registry import build_ensemble
from paml.network.build import DataShape
from paml.recommend.catalogue import Catalogue
from paml.recommend.predictor import Predictor
from paml.recommend.preference import STATE, Blend, By, Outputs, Preference, check_order, orders, preference_file
from paml.recommend.rate_profile import ReferenceUsers
from paml.recommend.requests import Rating, Values
from paml.recommend.user import User
from paml.settings import Settings, build
from paml.training import checkpoint
from paml.training.recipe import CHOICE, Recipe

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
    choice: Ensemble | None = None
    """The choice part, beside one that predicts ratings."""
    preference: Preference | None = None
    """What lists are ordered by, if the run knows about choice; without it, predictions."""

    @classmethod
    def load(cls, path: str | Path, *, complete: bool = True) -> "Run":
        """Open a run folder; an unfinished, incomplete, foreign or damaged one is a FormatError.

        With `complete=False`, the preference may be missing: its parts are needed to make it.
        """
        path = Path(path)
        settings, ensemble = _load_part(path, PARTS)
        choice = preference = None
        chosen = settings
        if settings.recipe.choice_part and settings.recipe.head != CHOICE:
            if not choice_folder(path).exists():
                raise FormatError("training has not finished", where=path, remedy="resume the training")
            chosen, choice = _load_part(choice_folder(path), PARTS[:1])
        if complete and (choice is not None or settings.recipe.head == CHOICE):
            preference = _load_preference(path, settings, chosen)
        return cls(path, settings, ensemble, choice, preference)

    @property
    def rater(self) -> Ensemble | None:
        """The part that predicts ratings or clicks; None if the run only knows about choice."""
        return None if self.settings.recipe.head == CHOICE else self.ensemble

    @property
    def chooser(self) -> Ensemble | None:
        """The part that knows which items users choose, if there is one."""
        return self.ensemble if self.settings.recipe.head == CHOICE else self.choice

    def outputs(self, loader: Loader) -> Outputs:
        """Outputs of the choice part and predictions of the other, for batches over all items."""
        chooser, rater = self.chooser, self.rater
        assert chooser is not None, "a run with a choice part"
        choose, rate = CatalogueScorer(chooser, loader), None if rater is None else CatalogueScorer(rater, loader)
        return lambda batch: (choose(batch), None if rate is None else rate(batch))

    def rank(self, data: Dataset, by: By | None = None) -> Rank:
        """Ranks all items for users of a data set, as `User.recommend` does.

        `by` is what lists are ordered by: `rating`, `choice` or, if the run knows about choice and nothing else is
        asked for, `preference`.
        """
        loader = Loader(data, self.ensemble.inputs, next(self.ensemble.parameters()).device)
        by = check_order(by, orders(rates=self.rater is not None, chooses=self.chooser is not None))
        if by == "rating":
            return CatalogueScorer(self.ensemble, loader).rank()
        chooser, preference = self.chooser, self.preference
        assert chooser is not None  # as `by` was checked
        scorer = CatalogueScorer(chooser, loader)
        if by == "choice":
            return scorer.rank()
        assert preference is not None
        outputs = self.outputs(loader)
        return scorer.rank(lambda batch: preference.score(batch, *outputs(batch)))

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
            choice=self.choice,
            preference=self.preference,
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
        """One row per user of a split; `paml.summarise` condenses them. A run that only ranks has no errors."""
        data = self.data() if data is None else self.data(data.path)
        rows = evaluate_ensemble(self.ensemble, data, split)
        return rows if self.rater is not None else rows.select("user", "group", "rate", "support_rows", "query_rows")


def choice_folder(path: Path) -> Path:
    """Where a run keeps its choice part."""
    return path / "choice"


def _load_part(path: Path, needed: Sequence[str]) -> tuple[RunSettings, Ensemble]:
    """Settings and weights of a part of a run."""
    settings = read_settings(path)
    weights = path / needed[0]
    if not weights.exists():
        raise FormatError("training has not finished", where=path, remedy="resume the training")
    for name in needed:
        if not (path / name).exists():
            raise FormatError(f"is incomplete: '{name}' is missing", where=path, remedy="train again")
    tensors, values = checkpoint.load(weights)
    if values.get("identity") != settings.identity():
        what = "weights and settings do not belong together: one was replaced or edited"
        raise FormatError(what, where=path, remedy="train again")
    ensemble = build_ensemble(settings.method, settings.shape(), settings.recipe, torch.Generator())
    load_state(ensemble, tensors, weights)
    return settings, ensemble


def _load_preference(path: Path, settings: RunSettings, choice: RunSettings) -> Preference:
    """What was fitted to these two parts; `choice` are the settings of the choice part."""
    file = preference_file(path)
    if not file.exists():
        raise FormatError("training has not finished", where=path, remedy="resume the training")
    tensors, values = checkpoint.load(file)
    found = [values.get(name) for name in ("identity", "choice")]
    if found != [settings.identity(), choice.identity()] or set(tensors) != set(STATE):
        raise FormatError("does not belong to the run's parts", where=file, remedy="train again")
    blend = build(Blend, values["blend"])
    return Preference(settings.data_schema, settings.vocabulary, tensors, blend)


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
