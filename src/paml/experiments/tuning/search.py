"""The search for settings: which recipe does a method need on this data set? Judged by validation users alone.

    OUT/plan.json     what is searched, and what the search was begun with
    OUT/trials.jsonl  what was tried, one line per trial: settings, validation per epoch, how it ended, seconds
    OUT/best.toml     the best trial's settings, a recipe file
    OUT/runs/N        the best trial's run

The log is the search's only memory: before every trial Optuna's study is rebuilt from it, its sampler seeded by the
trial's number. So a killed search that is continued proposes what an uninterrupted one would have proposed. Trials get
a data set without the targets of test users (`blinding.py`), and the first trial is the starting recipe itself.

With several jobs, lines are in the order in which trials ended, the start's first. If a search is shared
(`shared.py`), its memory is a storage, and the log a copy of it.
"""

import json
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

from paml.data.dataset import Dataset
from paml.errors import SettingsError, TrainingError
from paml.evaluation.blinding import BlindedDataset
from paml.experiments.tuning.criterion import Criterion
from paml.experiments.tuning.plan import Budget, SearchPlan, open_folder
from paml.experiments.tuning.shared import SharedStudy
from paml.experiments.tuning.space import as_values, space_for
from paml.experiments.tuning.study import Trial, load_optuna, quiet, read_log
from paml.experiments.tuning.trial import OutOfTimeError, TrialJob, plain, run_trial, run_trial_of
from paml.experiments.workers import Outcome, WorkerDied, Workers, check_jobs
from paml.files import make_folder, write_text
from paml.locks import NAME as LOCK, hold
from paml.methods.registry import find_method
from paml.methods.spaces import Space
from paml.progress import Inside, Progress, Step, chosen
from paml.settings import Settings, build, check_seed
from paml.training.keywords import TrainSettings
from paml.training.recipe import CHOICE, Recipe, recipe_for, require_read, trained_method

DEFAULT_FOLDER = Path("paml-tune")


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
    jobs: int = 1,
    threads_per_job: int = 1,
    storage: str | None = None,
    progress: Progress | bool | None = None,
    settings: Mapping[str, Any] | None = None,
    **more: Unpack[TrainSettings],
) -> SearchResult:
    """Search for settings of `method` that are better than a recipe's; write them to `out/best.toml`.

    Trials are judged by validation users alone; the first one is the recipe itself. The budget is a number of trials
    (`30`), a time (`"20m"`), or both (`"30,20m"`), and includes earlier calls in the same folder, which are continued.
    `space` is a TOML file with your own search space; `by` is the metric that trials are judged by, such as `"ndcg10"`,
    instead of the loss. Settings, by name or as a mapping, are held fixed. `progress` is as in `paml.train`.

    With `jobs` above 1, as many trials run at once, in processes of their own with `threads_per_job` threads. `storage`
    is a journal file or the URL of a database: searches that are given the same one share their trials, each with a
    folder of its own.

    >>> found = paml.tune(data, budget="20m", out="search")
    >>> run = paml.train(data, recipe=found.best_recipe)
    """
    check_jobs(jobs, threads_per_job)
    check_seed(seed)
    data = Dataset.of(data)
    find_method(method)
    limit = Budget.parse(budget)
    held = {**(settings or {}), **more}
    start = recipe_for(data, recipe, method, held)
    trained = "give it to the training by the recipe that is found, or search with head=choice"
    require_read(held, chooses=start.head == CHOICE, who="the trials of a search do", remedy=trained)
    if data.schema.target.kind == CHOICE:
        method = trained_method(CHOICE, recipe, method, held)
        start = start.model_copy(update={"choice_method": method})  # so that the best recipe means the same for ridge
    searched, criterion = space_for(method, held, space), Criterion.find(by, data.schema.target.kind, start.head)
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
        by=None if criterion.is_loss else criterion.name,
        shared=storage is not None,
    )
    load_optuna()
    shown = chosen(progress)
    data.verify_once(shown)
    make_folder(folder)
    with hold(folder / LOCK, folder, "searching in it"), quiet():
        open_folder(folder, plan)
        shared = None if storage is None else SharedStudy(storage, plan, searched)
        search = _Search(BlindedDataset(data, "all"), folder, plan, start, searched, criterion, shared)
        search.run(limit, shown, jobs, threads_per_job)
        return search.result()


class _Search:
    """Trials, one after the other or several at once, each logged when it is complete."""

    def __init__(
        self,
        data: BlindedDataset,
        folder: Path,
        plan: SearchPlan,
        start: Recipe,
        space: Space,
        criterion: Criterion,
        shared: SharedStudy | None,
    ) -> None:
        self._data, self._folder, self._plan, self._start, self._space = data, folder, plan, start, space
        self._criterion, self._shared = criterion, shared
        self._trials = read_log(folder / "trials.jsonl") if shared is None else shared.ended()
        self._under_way: dict[int, tuple[TrialJob, dict[str, Any]]] = {}
        self._held: list[tuple[TrialJob, Trial]] = []

    def run(self, budget: Budget, progress: Progress, jobs: int, threads: int) -> None:
        """Run trials until the budget ends; a trial that is cut off then does not count."""
        spent = 0.0 if self._shared is not None else sum(trial.seconds for trial in self._trials) / jobs
        ends = None if budget.seconds is None else time.monotonic() + budget.seconds - spent
        self._store()
        with progress.step(f"tuning {self._plan.method}", budget.trials) as step:
            step.advance(len(self._trials))
            try:
                if jobs > 1:
                    self._run_at_once(budget.trials, ends, step, Workers(jobs, threads))
                else:
                    self._run_one_by_one(budget.trials, ends, step)
            finally:
                if self._shared is not None:
                    self._shared.abandon()
        self._store()

    def _run_one_by_one(self, trials: int | None, ends: float | None, step: Step) -> None:
        while not self._is_over(trials, ends):
            job = self._begin(trials, ends, "")
            if job is None:
                break
            note = f"trial {job.number + 1}{self._best_note()}{self._time_left(trials, ends)}"
            step.advance(0, note)
            try:
                self._end(job.number, run_trial(job, self._data, Inside(step, note)), step)
            except OutOfTimeError:
                self._end(job.number, None, step)
                break

    def _run_at_once(self, trials: int | None, ends: float | None, step: Step, workers: Workers) -> None:
        with workers:
            while not (is_over := self._is_over(trials, ends)) or workers.at_work:
                job = self._begin(trials, ends, "job-") if workers.is_free and not is_over else None
                if job is not None:
                    workers.begin(job.number, run_trial_of, job, self._data.path)
                    continue
                notes = (f"trial {number + 1}" + (f" · {note}" if note else "") for number, note in workers.at_work)
                left = self._time_left(trials, ends, workers.count)
                step.advance(0, " | ".join(notes) + self._best_note() + left)
                for outcome in workers.ended():
                    self._end(outcome.key, self._trial_of(outcome), step)

    def _trial_of(self, outcome: Outcome) -> Trial | None:
        """A trial from another process; one that kills its processes is a bad one."""
        try:
            found: Trial | None = outcome.result()
        except WorkerDied as error:
            settings = self._under_way[outcome.key][1]
            found = Trial(outcome.key, "diverged", None, None, plain(settings), [], 0.0, error.what)
        return found

    def _begin(self, trials: int | None, ends: float | None, prefix: str) -> TrialJob | None:
        """The next trial, which now is under way; its run's folder has the prefix until its number is final.

        None if other commands have begun as many as there should be.
        """
        if self._shared is None:
            number = self._count()
            others = [settings for _, settings in self._under_way.values()]
        else:
            asked, others, prefix = self._shared.begin(trials), self._shared.under_way(), ""
            self._trials = self._shared.ended()
            if asked is None:
                return None
            number = asked
        out = self._folder / "runs" / f"{prefix}{number}"
        if self._shared is None:
            is_start = not number
        else:
            known = [*(trial.settings for trial in self._trials), *others]
            is_start = self._start_settings() not in known and self._shared.may_be_first(number)
        job = TrialJob(number, self._plan, self._start, self._space, tuple(self._trials), others, ends, out, is_start)
        settings = job.settings(job.proposed())
        if self._shared is not None:
            self._shared.note(number, plain(settings))
        self._under_way[number] = job, settings
        return job

    def _end(self, number: int, trial: Trial | None, step: Step) -> None:
        """Log a trial that has ended (None: out of time); others are held until the start has, whose line is first."""
        job, before = self._under_way.pop(number)[0], len(self._trials)
        if trial is None:
            return
        if self._shared is not None:
            self._shared.end(trial, job.out)
            self._trials = self._shared.ended()
        else:
            self._held.append((job, trial))
            if self._trials or not number:
                for one, ended in sorted(self._held, key=lambda pair: pair[0].number > 0):
                    self._add(one, ended)
                self._held = []
        self._store()
        step.advance(len(self._trials) - before)

    def _add(self, job: TrialJob, trial: Trial) -> None:
        """Trials are numbered in the order in which they end, so that the log has no gaps."""
        number = len(self._trials)
        run = job.out.with_name(str(number))
        if run != job.out and job.out.exists():
            job.out.rename(run)
        self._trials.append(replace(trial, number=number))

    def _count(self) -> int:
        """Trials that have begun, in a shared search also elsewhere."""
        if self._shared is not None:
            return self._shared.begun()
        return len(self._trials) + len(self._held) + len(self._under_way)

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
            metric=self._criterion.name,
            trials={state: states.count(state) for state in ("finished", "pruned", "diverged")},
            start=self._tried(self._first()),
            best=self._tried(best),
            seconds=sum(trial.seconds for trial in self._trials),
            best_recipe=str(self._folder / "best.toml"),
            run=str(self._run_of(best)),
        )

    def _run_of(self, trial: Trial) -> Path:
        """A trial's run: here or, if another command had the trial, where that says."""
        here = self._folder / "runs" / str(trial.number)
        return here if self._shared is None or here.exists() else Path(self._shared.run_of(trial.number))

    def _first(self) -> Trial:
        """The start; in a shared search it may be under way elsewhere."""
        settings = self._start_settings()
        unknown = Trial(0, "under way", None, None, settings, [], 0.0)
        return next((trial for trial in self._trials if trial.settings == settings), unknown)

    def _start_settings(self) -> dict[str, Any]:
        """The starting recipe's values of what is searched."""
        values = self._start.model_dump()
        return plain({name: values[name] for name in self._space})

    def _is_over(self, trials: int | None, ends: float | None) -> bool:
        if trials is not None and self._count() >= trials:
            return True
        # the first trial is run in any case: without it there is no result
        return bool(self._trials or self._under_way) and ends is not None and time.monotonic() >= ends

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
        jobs = [*(job for job, _ in self._under_way.values()), *(job for job, _ in self._held)]
        kept = {job.out.name for job in jobs} | (set() if best is None else {str(best.number)})
        runs = self._folder / "runs"
        for run in runs.iterdir() if runs.exists() else ():
            if run.name not in kept:
                shutil.rmtree(run)

    def _recipe_text(self, best: Trial) -> str:
        """The whole recipe, so that the file means the same with later defaults; searched settings come first."""
        plan, first = self._plan, self._first()
        which = f"{plan.method} on {plan.source}, seed {plan.seed}"
        values = build(Recipe, {**self._start.model_dump(), **best.settings}).model_dump(mode="json")
        others = [name for name, value in values.items() if name not in best.settings and value is not None]
        value, before = (self._tried(trial).validation for trial in (best, first))
        start = f"it {first.state.replace('under way', 'is under way')}" if before is None else f"{before:.6f}"
        metric = self._criterion.name
        metric = metric.upper() if self._criterion.metric is not None else metric.capitalize()

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

    def _time_left(self, trials: int | None, ends: float | None, jobs: int = 1) -> str:
        """Until the number of trials is reached, from how long they took so far, or until the time ends."""
        seconds = [] if ends is None else [max(ends - time.monotonic(), 0.0)]
        if trials is not None and self._trials:
            each = sum(trial.seconds for trial in self._trials) / len(self._trials)
            seconds.append((trials - len(self._trials)) * each / jobs)
        if not seconds:
            return ""
        return f" · about {min(seconds) / 60:.0f} min left" if min(seconds) >= 60 else " · less than a minute left"
