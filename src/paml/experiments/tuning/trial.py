"""One trial of a search: a training with some settings, judged by validation users; here or in another process."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paml.data.dataset import Dataset
from paml.errors import SettingsError, TrainingError
from paml.evaluation.blinding import BlindedDataset
from paml.experiments.tuning.criterion import Criterion
from paml.experiments.tuning.plan import SearchPlan
from paml.experiments.tuning.study import Trial, load_optuna, propose, quiet
from paml.methods.spaces import Choice, Space
from paml.progress import Progress
from paml.settings import build
from paml.training.recipe import Recipe
from paml.training.train import train

if TYPE_CHECKING:
    import optuna


class OutOfTimeError(Exception):
    """The budget ended within a trial."""


@dataclass(frozen=True)
class TrialJob:
    """All that a trial follows from."""

    number: int
    plan: SearchPlan
    start: Recipe
    space: Space
    before: Sequence[Trial]
    """The trials that have ended."""
    under_way: Sequence[Mapping[str, Any]]
    """The settings of those that have not."""
    ends: float | None
    """When the budget ends, by the monotonic clock, which all processes of a machine share."""
    out: Path
    """The folder of its run."""
    is_start: bool
    """Whether it tries the starting recipe."""

    def proposed(self) -> "optuna.Trial | None":
        """What the study proposes, which is always the same; None for the start."""
        if self.is_start:
            return None
        seed, epochs = self.plan.seed, self.start.epochs
        return propose(self.before, self.space, seed, epochs, number=self.number, under_way=self.under_way)

    def settings(self, proposed: "optuna.Trial | None") -> dict[str, Any]:
        """The settings that are tried, of those that are searched."""
        values = self.start.model_dump()
        return {name: values[name] for name in self.space} if proposed is None else dict(proposed.params)


def run_trial_of(job: TrialJob, path: Path, progress: Progress) -> Trial | None:
    """`run_trial` in another process: on the data set in a folder; None if the budget ended before."""
    data = Dataset.open(path)
    data.verify_once()  # before targets are erased, which no digest fits
    shutil.rmtree(job.out, ignore_errors=True)  # a process that died has left it: pruning needs the first epochs again
    try:
        with quiet():
            return run_trial(job, BlindedDataset(data, "all"), progress)
    except OutOfTimeError:
        return None


def run_trial(job: TrialJob, data: BlindedDataset, progress: Progress) -> Trial:
    """Train with the starting recipe's settings, or with those that the study proposes."""
    asked = job.proposed()
    settings = job.settings(asked)
    criterion = Criterion.find(job.plan.by, data.schema.target.kind, job.start.head)
    history: list[float] = []
    started = time.monotonic()

    def ended(state: str, reason: str | None = None, judged: float | None = None) -> Trial:
        best = min(range(len(history)), key=history.__getitem__) if history else None
        epoch = None if best is None else best + 1
        value = judged if judged is not None or best is None else history[best]
        seconds = round(time.monotonic() - started, 3)
        return Trial(job.number, state, value, epoch, plain(settings), history, seconds, reason)

    try:
        recipe = build(Recipe, {**job.start.model_dump(), **settings})
        run = train(
            data,
            job.plan.method,
            job.plan.recipe,
            seed=job.plan.seed,
            out=job.out,
            progress=progress,
            on_epoch=_judge(asked, history, recipe.epochs, job.ends, prune=criterion.is_loss),
            settings={**recipe.model_dump(), "choice_part": False},  # has settings of its own: head=choice
        )
    except TrainingError as error:
        return ended("diverged", error.what)
    except SettingsError as error:  # these do not fit each other, or make a network that does not fit this machine
        if job.is_start:
            raise
        return ended("diverged", error.what)
    except load_optuna().TrialPruned:
        return ended("pruned")
    if not history:
        raise SettingsError("a trial of 0 epochs cannot be judged", remedy="search and hold epochs of at least 1")
    judged = None if criterion.is_loss else criterion.value(run, data)
    return ended("finished", judged=judged)


def _judge(
    asked: "optuna.Trial | None", history: list[float], epochs: int, ends: float | None, *, prune: bool
) -> Callable[[int, float | None], None]:
    """What is done after each epoch: note its value, and end a trial that is worse than others or out of time."""

    def on_epoch(epoch: int, value: float | None) -> None:
        assert value is not None  # there are validation users
        history.append(value)
        if asked is None or epoch >= epochs:
            return  # the start is always trained to its end, and a trial that has reached its end is not cut off
        asked.report(value, epoch - 1)
        if prune and asked.should_prune():
            raise load_optuna().TrialPruned
        if ends is not None and time.monotonic() >= ends:
            raise OutOfTimeError

    return on_epoch


def plain(settings: Mapping[str, Any]) -> dict[str, Choice | list[Choice]]:
    """Settings as JSON values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
