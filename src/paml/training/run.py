"""A run on disk: a trained learner and everything needed to use it again.

RUN/settings.json        method, recipe, seed, what it was trained on (fingerprint), how training ended; a seal
RUN/weights.safetensors  parameters, and AT-PAML's memory; size and digest of the three files below
RUN/vocab.json           the data set's vocabulary
RUN/catalogue.parquet    all items, and how often training users rated them
RUN/reference_users.parquet   groups, rates and embeddings of training users, without ids, for rate profiles
RUN/choice/              the choice part, if there is one: settings, weights and metrics of its own
RUN/preference.safetensors    with a choice part: what else lists are ordered by, and the weights of all of it
RUN/metrics.jsonl        one line per epoch
RUN/rows.parquet         the last evaluation, one row per user
RUN/resume/              the state of an unfinished training

Everything that is read again is covered by a digest, from the last file written to the first: the preference names the
digests of both parts' weights, the weights those of the files beside them and the identity of the settings; the
settings, which also say how long training took, have a seal of their own and name the digest of the metrics. So equal
trainings have equal weights, byte by byte, and a file of another run is noticed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import torch
from pydantic import Field, ValidationError

from paml.data.dataset import Dataset, Vocabulary
from paml.data.schema import Schema
from paml.episodes.batches import Loader
from paml.episodes.tasks import Split
from paml.errors import Again, FormatError, SettingsError
from paml.evaluation.ranking import Rank
from paml.evaluation.scoring import CatalogueScorer, evaluate_ensemble
from paml.files import Listed, as_model, check_all_listed, exists, listed, read_json, read_listed, write_text
from paml.methods.learner import Ensemble
from paml.methods.merge import settings_in_use
from paml.methods.registry import build_ensemble, find_method, origins_of, tensors_of_a_member
from paml.network.build import DataShape
from paml.recommend.catalogue import Catalogue
from paml.recommend.predictor import Predictor
from paml.recommend.preference import STATE, Blend, By, Outputs, Preference, check_order, orders, preference_file
from paml.recommend.rate_profile import ReferenceUsers
from paml.recommend.requests import Ratings, Values
from paml.recommend.user import User
from paml.registry import Origin
from paml.settings import Settings, added, build
from paml.training import checkpoint
from paml.training.anew import anew
from paml.training.recipe import CHOICE, Recipe
from paml.training.show import run_html

FORMAT = 5
WEIGHTS, METRICS = "weights.safetensors", "metrics.jsonl"
COMPANIONS = ("vocab.json", "catalogue.parquet", "reference_users.parquet")
"""Files that the weights of a part are used with, and whose digests are in the weights' file."""
UNFINISHED, RESUME = "training has not finished", "resume the training"
AGAIN = "train again, or restore the file"


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
    metrics: Listed | None = None
    """The file of the epochs, once training has ended."""
    packages: dict[str, str] = added(
        {}, "packages beside paml that the method comes from, and their versions; none for a module that registered it"
    )
    seal: str = ""
    """SHA-256 of everything else."""

    def identity(self) -> str:
        """SHA-256 of what the weights belong to: not the data's path, versions, and how training ended."""
        return self._digest({"summary", "data_path", "created_by", "metrics", "packages", "seal"})

    def sealed(self) -> "RunSettings":
        """The same settings with their seal."""
        return self.model_copy(update={"seal": self._digest({"seal"})})

    def _digest(self, exclude: set[str]) -> str:
        return hashlib.sha256(self.model_dump_json(exclude=exclude).encode()).hexdigest()

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
    files: Mapping[str, Listed] = field(default_factory=dict)
    """Size and digest of the files beside the weights."""
    seals: tuple[tuple[str, str], ...] = ()
    """Of the parts for ratings and for choice, which may be the same: identity of settings, digest of weights."""

    @classmethod
    def load(cls, path: str | Path, *, complete: bool = True) -> "Run":
        """Open a run folder; an unfinished, incomplete, foreign or damaged one is a FormatError.

        With `complete=False`, the preference may be missing: its parts are needed to make it.
        """
        path = Path(path)
        part = chooser = _load_part(path)
        choice = preference = None
        if part.settings.recipe.choice_part and part.settings.recipe.head != CHOICE:
            if not exists(choice_folder(path), AGAIN):
                raise FormatError(UNFINISHED, where=path, remedy=RESUME)
            chooser = _load_part(choice_folder(path))
            choice = chooser.ensemble
        if complete and (choice is not None or part.settings.recipe.head == CHOICE):
            preference = _load_preference(path, part, chooser)
        return cls(path, part.settings, part.ensemble, choice, preference, part.files, (part.seals, chooser.seals))

    def __repr__(self) -> str:
        settings = self.settings
        parts = " and choice" if self.choice is not None else ""
        kind = settings.data_schema.target.kind if self.rater is not None else "choice"
        what = f"{settings.method} for {kind}s{parts}, {settings.items:,} items, seed {settings.seed}"
        return f"Run({str(self.path)!r}: {what})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return run_html(self)

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
            return Vocabulary.model_validate_json(read_listed(file, self.files[file.name], AGAIN))
        except ValidationError:
            raise FormatError("is damaged", where=file, remedy=AGAIN) from None

    @cached_property
    def predictor(self) -> Predictor:
        """The run in use; only the run folder is needed."""
        settings = self.settings
        file = self.path / "catalogue.parquet"
        catalogue = Catalogue.load(file, self.files[file.name], settings.data_schema)
        if len(catalogue) != settings.items:
            what = f"has {len(catalogue):,} items, the run {settings.items:,}"
            raise FormatError(what, where=file, remedy=AGAIN)
        width = self.ensemble.members[0].network.user.width
        file = self.path / "reference_users.parquet"
        reference_users = ReferenceUsers.load(file, self.files[file.name], width)
        return Predictor(
            self.ensemble,
            settings.data_schema,
            self.vocabulary,
            catalogue,
            reference_users,
            major_above=settings.major_above,
            choice=self.choice,
            preference=self.preference,
            rate_label=find_method(settings.method).rate_label,
        )

    def adapt(self, profile: Values | None = None, ratings: Ratings | None = None) -> User:
        """Adapt to a new user, given a profile and a few ratings; either may be missing.

        `profile` has values by field name; `ratings` has values by item id, or is a list of pairs or of `paml.Rating`.

        >>> user = run.adapt(profile={"gender": "F", "age": 25}, ratings={"3": 5, "7": 2})
        >>> len(user.recommend(10))
        10
        """
        return self.predictor.adapt(profile, ratings)

    def data(self, path: str | Path | None = None) -> Dataset:
        """The data set that the run was trained on; any other is refused."""
        data = Dataset.open(path or self.settings.data_path)
        data.verify_once()
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


@dataclass(frozen=True)
class Part:
    """A trained part of a run."""

    settings: RunSettings
    ensemble: Ensemble
    files: dict[str, Listed]
    digest: str
    """Of the weights."""

    @property
    def seals(self) -> tuple[str, str]:
        """What a preference that was fitted to this part names."""
        return self.settings.identity(), self.digest


def _load_part(path: Path) -> Part:
    """Settings and weights of a part of a run; every other file of it is compared with its digest."""
    settings = read_settings(path)
    require_packages(path, settings)
    weights = path / WEIGHTS
    if not exists(weights, AGAIN):
        raise FormatError(UNFINISHED, where=path, remedy=RESUME)
    found = checkpoint.load(weights)
    if found.values.get("identity") != settings.identity():
        what = "weights and settings do not belong together: one was replaced or edited"
        raise FormatError(what, where=path, remedy=AGAIN)
    files = _files_beside(weights, found.values)
    covered = files if settings.metrics is None else {**files, METRICS: settings.metrics}
    check_all_listed(path, covered, AGAIN)
    return Part(settings, _build(settings, found.tensors, weights), files, found.digest)


def require_packages(path: Path, settings: RunSettings) -> None:
    """Raise a FormatError if the method of a run comes from a package that is missing or broken."""
    if not settings.packages:
        return
    try:
        origins_of(settings.method)
    except SettingsError as error:
        (package, version), *_ = settings.packages.items()
        whose = Origin(package, version)
        unknown = error.what.startswith("unknown")
        what = f"needs the method '{settings.method}' of {whose}" + ("" if unknown else f" ({error.what})")
        remedy = f"pip install {package}=={version}" if version else "import it first: it calls paml.register"
        raise FormatError(what, where=path, remedy=remedy if unknown else error.remedy) from None


def _files_beside(weights: Path, values: Mapping[str, Any]) -> dict[str, Listed]:
    """What the weights' file says about the files beside it."""
    try:
        files = {name: Listed.model_validate(entry) for name, entry in dict(values.get("files", {})).items()}
    except (ValidationError, TypeError, ValueError):
        files = {}
    if set(files) != set(COMPANIONS):
        raise FormatError("does not list the files of its run", where=weights, remedy=AGAIN)
    return files


def companions(path: Path) -> dict[str, dict[str, Any]]:
    """Size and digest of the files beside the weights, for the weights' file."""
    return {name: listed(path / name).model_dump() for name in COMPANIONS}


def _build(settings: RunSettings, tensors: dict[str, torch.Tensor], where: Path) -> Ensemble:
    """The ensemble of these tensors; settings that ask for others are refused before anything is allocated."""
    try:
        recipe = settings_in_use(settings.method, settings.shape(), settings.recipe)
        one = tensors_of_a_member(settings.method, settings.shape(), recipe)
    except (SettingsError, RuntimeError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise _misfit(str(error).partition("\n")[0], where) from None
    if len(tensors) != recipe.ensemble_size * len(one):
        raise _misfit(f"{len(tensors):,} tensors, not {recipe.ensemble_size:,} times {len(one):,}", where)
    for name, tensor in tensors.items():
        expected = one.get(name.split(".", 2)[-1])
        if expected is None or expected.shape != tensor.shape:
            raise _misfit(f"tensor '{name[:60]}'", where)
    ensemble = build_ensemble(settings.method, settings.shape(), recipe, torch.Generator())
    load_state(ensemble, tensors, where)
    return ensemble


def _misfit(what: str, where: Path) -> FormatError:
    return FormatError(f"does not fit the run's settings ({what})", where=where, remedy=AGAIN)


def _load_preference(path: Path, part: Part, chooser: Part) -> Preference:
    """What was fitted to these two parts."""
    file = preference_file(path)
    if not exists(file, AGAIN):
        raise FormatError(UNFINISHED, where=path, remedy=RESUME)
    found = checkpoint.load(file)
    parts = [list(part.seals), list(chooser.seals)]
    if found.values.get("parts") != parts or set(found.tensors) != set(STATE):
        raise FormatError("does not belong to the run's parts", where=file, remedy=AGAIN)
    try:
        blend = build(Blend, found.values["blend"])
        return Preference(part.settings.data_schema, part.settings.vocabulary, found.tensors, blend)
    except (SettingsError, RuntimeError, IndexError, KeyError, TypeError) as error:
        what = f"does not fit the run's settings ({str(error).partition(chr(10))[0]})"
        raise FormatError(what, where=file, remedy=AGAIN) from None


def read_settings(path: Path) -> RunSettings:
    """The settings of a run folder."""
    file, remedy = path / "settings.json", "give a folder made by 'paml train'"
    missing = FormatError("no such run", where=path, remedy=remedy)
    values = read_json(file, remedy, missing=missing)
    settings = as_model(RunSettings, values, file, AGAIN, lambda: _anew(path, values))
    if settings.sealed() != settings:
        raise FormatError("was edited", where=file, remedy=AGAIN)
    return settings


def _anew(path: Path, values: Mapping[str, Any]) -> Again:
    """The command that trains a run of another version again."""
    beside = choice_folder(path) / "settings.json"
    return anew(path, values, read_json(beside, AGAIN) if exists(beside, AGAIN) else {})


def write_settings(path: Path, settings: RunSettings) -> None:
    """Store the settings with their seal, atomically."""
    write_text(path / "settings.json", settings.sealed().model_dump_json(indent=1) + "\n")


def load_state(ensemble: Ensemble, tensors: dict[str, torch.Tensor], where: Path) -> None:
    """Load tensors into an ensemble; missing, unexpected or misshapen ones are a FormatError."""
    try:
        ensemble.load_state_dict(tensors)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        raise _misfit(first, where) from None
