"""The search for settings: which recipe does a method need on this data set? Judged by validation users alone.

    OUT/plan.json     what is searched, and what the search was begun with
    OUT/trials.jsonl  what was tried, one line per trial: settings, validation per epoch, how it ended, seconds
    OUT/best.toml     the best trial's settings, a recipe file
    OUT/runs/N        the best trial's run

The log is the search's only memory: before every trial Optuna's study is rebuilt from it, its sampler seeded by the
trial's number. So a killed search that is continued proposes what an uninterrupted one would have proposed. Trials get
a data set without the targets of test users (`blinding.py`), and the first trial is the starting recipe itself.
"""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

from paml.data.dataset import Dataset
from paml.errors import SettingsError, TrainingError
from paml.evaluation.blinding import BlindedDataset
from paml.experiments.tuning.criterion import Criterion
from paml.experiments.tuning.space import as_values, space_for
from paml.experiments.tuning.study import Trial, load_optuna, propose, quiet, read_log
from paml.files import as_model, make_folder, read_json, write_text
from paml.locks import NAME as LOCK, hold
from paml.methods.registry import find_method
from paml.methods.spaces import Choice, Space
from paml.progress import Inside, Progress, chosen
from paml.settings import Settings, build
from paml.training.keywords import TrainSettings
from paml.training.recipe import CHOICE, Recipe, recipe_for, trained_method
from paml.training.train import train

if TYPE_CHECKING:
    import optuna

FORMAT: Final = 1
DEFAULT_FOLDER = Path("paml-tune")
UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Budget:
    """A number of trials, a time, or both: whichever ends first."""

    trials: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str | int) -> "Budget":
        """`"30"` trials, `"20m"` or `"1h"`, or both: `"30,20m"`."""
        found: dict[str, float] = {}
        for part in str(text).split(","):
            match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", part.strip())
            kind = "seconds" if match and match[2] else "trials"
            amount = float(match[1]) * UNITS.get(match[2], 1) if match else 0
            if amount <= 0 or kind in found or (kind == "trials" and amount != int(amount)):
                remedy = "give a number of trials (30), a time (90s, 20m, 1h), or both (30,20m)"
                raise SettingsError(f"budget '{text}'", remedy=remedy)
            found[kind] = amount
        return cls(int(found["trials"]) if "trials" in found else None, found.get("seconds"))


class SearchPlan(Settings):
    """What is searched, and what the search was begun with."""

    format: Literal[1] = FORMAT
    source: str
    fingerprint: str
    method: str
    recipe: str
    start: dict[str, Any]
    """The whole starting recipe."""
    space: dict[str, dict[str, Any]]
    seed: int
    by: str | None = None
    """The metric that trials are judged by; None for the loss that training watches."""


class Tried(Settings):
    """The settings of a trial, and the metric that they reached on validation users."""

    trial: int
    validation: float | None
    """None where it diverged."""
    epoch: int | None
    """The best epoch, from 1."""
    settings: dict[str, Any]
    """Those that are searched."""


class SearchResult(Settings):
    """What a search found."""

    method: str
    recipe: str
    seed: int
    source: str
    fingerprint: str
    metric: str
    trials: dict[str, int]
    """How many finished, were pruned, and diverged."""
    start: Tried
    best: Tried
    seconds: float
    best_recipe: str
    """A recipe file with the best trial's settings."""
    run: str
    """The best trial's run."""


class _OutOfTimeError(Exception):
    """The budget ended within a trial."""


def tune(
    data: Dataset | str | Path,
    method: str = "ridge",
    recipe: str | Path = "tuned",
    *,
    budget: str | int = 30,
    seed: int = 0,
    out: str | Path | None = None,
    space: str | Path | None = None,
    by: str | None = None,
    progress: Progress | bool | None = None,
    settings: Mapping[str, Any] | None = None,
    **more: Unpack[TrainSettings],
) -> SearchResult:
    """Search for settings of `method` that are better than a recipe's; write them to `out/best.toml`.

    Trials are judged by validation users alone; the first one is the recipe itself. The budget is a number of trials
    (`30`), a time (`"20m"`), or both (`"30,20m"`), and includes earlier calls in the same folder, which are continued.
    `space` is a TOML file with your own search space; `by` is the metric that trials are judged by, such as `"ndcg10"`,
    instead of the loss. Settings, by name or as a mapping, are held fixed. `progress` is as in `paml.train`.

    >>> found = paml.tune(data, budget="20m", out="search")
    >>> run = paml.train(data, recipe=found.best_recipe)
    """
    data = Dataset.of(data)
    find_method(method)
    limit = Budget.parse(budget)
    held = {**(settings or {}), **more}
    start = recipe_for(data, recipe, method, held)
    if data.schema.target.kind == CHOICE:
        method = trained_method(CHOICE, recipe, method, held)
        start = start.model_copy(update={"choice_method": method})  # so that the best recipe means the same for ridge
    searched, criterion = space_for(method, held, space), Criterion.find(by, data.schema.target.kind)
    first, end = data.manifest.splits["validation"]
    if first == end:
        remedy = "prepare it with another user_ratio"
        raise SettingsError("the data set has no validation users to judge trials by", where=data.path, remedy=remedy)
    folder = Path(out) if out is not None else DEFAULT_FOLDER / f"{data.manifest.source.name}-{method}"
    plan = SearchPlan(
        source=data.manifest.source.name,
        fingerprint=data.fingerprint,
        method=method,
        recipe=str(recipe),
        start=start.model_dump(mode="json"),
        space=as_values(searched),
        seed=seed,
        by=None if criterion.is_loss else criterion.metric.name,
    )
    load_optuna()
    shown = chosen(progress)
    data.verify_once(shown)
    make_folder(folder)
    with hold(folder / LOCK, folder, "searching in it"), quiet():
        _open_folder(folder, plan)
        search = _Search(BlindedDataset(data, "all"), folder, plan, start, searched, criterion)
        search.run(limit, shown)
        return search.result()


def _open_folder(folder: Path, plan: SearchPlan) -> None:
    """Begin a search, or check that the one in the folder was begun with the same data and settings."""
    file = folder / "plan.json"
    if file.exists():
        remedy = "choose another folder"
        found = as_model(SearchPlan, read_json(file, remedy), file, remedy)
        for same, what in (
            (found.fingerprint == plan.fingerprint, "another data set"),
            (found.method == plan.method, "another method"),
            (found.start == plan.start, "another recipe or other settings"),
            (found.space == plan.space, "another search space"),
            (found.seed == plan.seed, "another seed"),
            (found.by == plan.by, "another metric to judge by"),
        ):
            if not same:
                remedy = "repeat what it was begun with, or choose another folder"
                raise SettingsError(f"was begun with {what}", where=folder, remedy=remedy, argument="out")
        return
    if any(other.name != LOCK for other in folder.iterdir()):
        raise SettingsError(
            "is neither empty nor a search", where=folder, remedy="choose another folder", argument="out"
        )
    write_text(file, plan.model_dump_json(indent=1) + "\n")


class _Search:
    """Trials, one after the other, each logged when it is complete."""

    def __init__(
        self,
        data: BlindedDataset,
        folder: Path,
        plan: SearchPlan,
        start: Recipe,
        space: Space,
        criterion: Criterion,
    ) -> None:
        self._data, self._folder, self._plan, self._start, self._space = data, folder, plan, start, space
        self._criterion = criterion
        self._trials = read_log(folder / "trials.jsonl")

    def run(self, budget: Budget, progress: Progress) -> None:
        """Run trials until the budget ends; a trial that is cut off then does not count."""
        spent = sum(trial.seconds for trial in self._trials)
        ends = None if budget.seconds is None else time.monotonic() + budget.seconds - spent
        self._store()
        with progress.step(f"tuning {self._plan.method}", budget.trials) as step:
            step.advance(len(self._trials))
            while not self._is_over(budget.trials, ends):
                note = f"trial {len(self._trials) + 1}{self._best_note()}{self._time_left(budget.trials, ends)}"
                step.advance(0, note)
                try:
                    trial = self._run_trial(ends, Inside(step, note))
                except _OutOfTimeError:
                    break
                self._trials.append(trial)
                self._store()
                step.advance(1)
        self._store()

    def result(self) -> SearchResult:
        """What was found."""
        best = self._best()
        if best is None:
            reason = next((trial.reason for trial in self._trials if trial.reason), "")
            remedy = "search lower rates, or set clip_norm"
            raise TrainingError(f"every trial diverged ({reason})", where=self._folder, remedy=remedy)
        plan, states = self._plan, [trial.state for trial in self._trials]
        return SearchResult(
            method=plan.method,
            recipe=plan.recipe,
            seed=plan.seed,
            source=plan.source,
            fingerprint=plan.fingerprint,
            metric=self._criterion.metric.name,
            trials={state: states.count(state) for state in ("finished", "pruned", "diverged")},
            start=self._tried(self._trials[0]),
            best=self._tried(best),
            seconds=sum(trial.seconds for trial in self._trials),
            best_recipe=str(self._folder / "best.toml"),
            run=str(self._folder / "runs" / str(best.number)),
        )

    def _is_over(self, trials: int | None, ends: float | None) -> bool:
        if trials is not None and len(self._trials) >= trials:
            return True
        # the first trial is run in any case: without it there is no result
        return bool(self._trials) and ends is not None and time.monotonic() >= ends

    def _run_trial(self, ends: float | None, progress: Progress) -> Trial:
        """Train with the starting recipe's settings, or with those that the study proposes."""
        number = len(self._trials)
        asked = propose(self._trials, self._space, self._plan.seed, self._start.epochs) if number else None
        values = self._start.model_dump()
        settings = {name: values[name] for name in self._space} if asked is None else dict(asked.params)
        recipe = build(Recipe, {**values, **settings})
        history: list[float] = []
        started = time.monotonic()

        def ended(state: str, reason: str | None = None, judged: float | None = None) -> Trial:
            best = min(range(len(history)), key=history.__getitem__) if history else None
            epoch = None if best is None else best + 1
            value = judged if judged is not None or best is None else history[best]
            seconds = round(time.monotonic() - started, 3)
            return Trial(number, state, value, epoch, _plain(settings), history, seconds, reason)

        try:
            run = train(
                self._data,
                self._plan.method,
                self._plan.recipe,
                seed=self._plan.seed,
                out=self._folder / "runs" / str(number),
                progress=progress,
                on_epoch=_judge(asked, history, recipe.epochs, ends, prune=self._criterion.is_loss),
                settings={**recipe.model_dump(), "choice_part": False},  # has settings of its own: head=choice
            )
        except TrainingError as error:
            return ended("diverged", error.what)
        except load_optuna().TrialPruned:
            return ended("pruned")
        if not history:
            raise SettingsError("a trial of 0 epochs cannot be judged", remedy="search and hold epochs of at least 1")
        judged = None if self._criterion.is_loss else self._criterion.value(run, self._data)
        return ended("finished", judged=judged)

    def _best(self) -> Trial | None:
        finished = [trial for trial in self._trials if trial.state == "finished"]
        return min(finished, key=lambda trial: (trial.validation, trial.number), default=None)

    def _store(self) -> None:
        """Write the log first: everything else can be made from it again."""
        lines = (json.dumps(asdict(trial)) for trial in self._trials)
        write_text(self._folder / "trials.jsonl", "".join(f"{line}\n" for line in lines))
        best = self._best()
        if best is not None:
            write_text(self._folder / "best.toml", self._recipe_text(best))
        runs = self._folder / "runs"
        for run in runs.iterdir() if runs.exists() else ():
            if best is None or run.name != str(best.number):
                shutil.rmtree(run)

    def _recipe_text(self, best: Trial) -> str:
        """The whole recipe, so that the file means the same with later defaults; searched settings come first."""
        plan, first = self._plan, self._trials[0]
        which = f"{plan.method} on {plan.source}, seed {plan.seed}"
        values = build(Recipe, {**self._start.model_dump(), **best.settings}).model_dump(mode="json")
        others = [name for name, value in values.items() if name not in best.settings and value is not None]
        value, before = (self._tried(trial).validation for trial in (best, first))
        start = "it diverged" if before is None else f"{before:.6f}"
        metric = self._criterion.metric.name.upper()

        def lines(names: Iterable[str]) -> list[str]:
            return [f"{name} = {json.dumps(values[name], ensure_ascii=False)}" for name in names]

        head = [
            f"# Found by `paml tune` for {which}: trial {best.number}.",
            f"# {metric} of validation users: {value:.6f}; recipe {plan.recipe}: {start}.",
        ]
        return "\n".join([*head, *lines(best.settings), "", "# Not searched.", *lines(others), ""])

    def _best_note(self) -> str:
        best = self._best()
        return "" if best is None else f" · best {self._tried(best).validation:.4f}"

    def _tried(self, trial: Trial) -> Tried:
        """A trial's settings and what it reached, in the metric's own terms."""
        validation = self._criterion.shown(trial.validation) if trial.state == "finished" else None
        return Tried(trial=trial.number, validation=validation, epoch=trial.epoch, settings=trial.settings)

    def _time_left(self, trials: int | None, ends: float | None) -> str:
        """Until the number of trials is reached, from how long they took so far, or until the time ends."""
        seconds = [] if ends is None else [max(ends - time.monotonic(), 0.0)]
        if trials is not None and self._trials:
            seconds.append((trials - len(self._trials)) * sum(t.seconds for t in self._trials) / len(self._trials))
        if not seconds:
            return ""
        return f" · about {min(seconds) / 60:.0f} min left" if min(seconds) >= 60 else " · less than a minute left"


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
            raise _OutOfTimeError

    return on_epoch


def _plain(settings: Mapping[str, Any]) -> dict[str, Choice | list[Choice]]:
    """Settings as JSON values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}
