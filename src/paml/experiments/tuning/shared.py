"""A search that several commands share, also on several machines: its trials are in a storage of Optuna's.

A journal file on a shared file system, or a database (PostgreSQL; SQLite on one machine). The study there is an
ordinary one, for Optuna's own tools; what we need of a trial is in its attribute `trial`. Searches with the same data,
method, start, space and seed are one study, whatever their budgets.
"""

import hashlib
import os
import socket
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paml.errors import SettingsError
from paml.experiments.tuning.plan import SearchPlan
from paml.experiments.tuning.study import Trial, distribution, load_optuna, placed
from paml.methods.spaces import Space

if TYPE_CHECKING:
    import optuna

SETTINGS, TRIAL, RUN, PROCESS = "settings", "trial", "run", "process"  # attributes of a trial
LOST_AFTER = timedelta(days=1)
"""From then on a trial that has not ended is not waited for: its machine may have gone."""


class SharedStudy:
    """The trials of all commands, and those that this one has begun."""

    def __init__(self, storage: str, plan: SearchPlan, space: Space) -> None:
        optuna = load_optuna()
        digest = hashlib.sha256(plan.model_dump_json(exclude={"recipe"}).encode()).hexdigest()[:16]
        name = f"paml-{plan.source}-{plan.method}-{digest}"
        self._study = optuna.create_study(storage=_open(storage), study_name=name, load_if_exists=True)
        self._space = space
        self._begun: dict[int, Any] = {}

    def ended(self) -> list[Trial]:
        """The trials that have ended, wherever they ran, in the order of their numbers."""
        found = [trial.user_attrs.get(TRIAL) for trial in self._study.get_trials(deepcopy=False)]
        return [Trial(**one) for one in found if one is not None]

    def under_way(self) -> list[dict[str, Any]]:
        """The settings of trials that have begun, here or elsewhere."""
        running = self._study.get_trials(deepcopy=False, states=(load_optuna().trial.TrialState.RUNNING,))
        return [trial.user_attrs[SETTINGS] for trial in running if SETTINGS in trial.user_attrs and not _is_lost(trial)]

    def begun(self, before: int | None = None) -> int:
        """How many trials have ended or are under way, here or elsewhere; of those asked for before one, if given."""
        running = load_optuna().trial.TrialState.RUNNING
        return sum(
            TRIAL in trial.user_attrs or (trial.state == running and not _is_lost(trial))
            for trial in self._study.get_trials(deepcopy=False)
            if before is None or trial.number < before
        )

    def may_be_first(self, number: int) -> bool:
        """Whether all earlier trials have said what they try: otherwise one of them may be the start."""
        running = self._study.get_trials(deepcopy=False, states=(load_optuna().trial.TrialState.RUNNING,))
        return all(SETTINGS in trial.user_attrs or _is_lost(trial) for trial in running if trial.number < number)

    def begin(self, trials: int | None) -> int | None:
        """The number of a new trial, which no other command gets; None if there are as many already."""
        asked = self._study.ask()
        if trials is not None and self.begun(asked.number) >= trials:  # another command was faster
            self._study.tell(asked, state=load_optuna().trial.TrialState.FAIL)
            return None
        self._begun[asked.number] = asked
        return int(asked.number)

    def note(self, number: int, settings: Mapping[str, Any]) -> None:
        """Record what a trial tries."""
        asked, values = self._begun[number], placed(settings, self._space)["params"]
        optuna = load_optuna()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            given = optuna.samplers.PartialFixedSampler(values, optuna.samplers.RandomSampler())
        self._study.sampler = given  # so that the study has parameters, though it does not choose them
        for name in values:
            _suggest(asked, name, distribution(name, self._space[name]))
        asked.set_user_attr(PROCESS, [socket.gethostname(), os.getpid()])
        asked.set_user_attr(SETTINGS, dict(settings))

    def end(self, trial: Trial, run: Path) -> None:
        """Record how a trial ended, and where its run is."""
        asked, states = self._begun.pop(trial.number), load_optuna().trial.TrialState
        for epoch, value in enumerate(trial.history):
            asked.report(value, epoch)
        asked.set_user_attr(RUN, str(run.resolve()))
        asked.set_user_attr(TRIAL, asdict(trial))
        if trial.state == "finished":
            self._study.tell(asked, trial.validation)
        else:
            self._study.tell(asked, state=states.PRUNED if trial.state == "pruned" else states.FAIL)

    def abandon(self) -> None:
        """Trials of this command that did not end do not count."""
        for asked in self._begun.values():
            self._study.tell(asked, state=load_optuna().trial.TrialState.FAIL)
        self._begun = {}

    def run_of(self, number: int) -> str:
        """The folder of a trial's run, as the command that ran it names it."""
        return str(self._study.get_trials(deepcopy=False)[number].user_attrs[RUN])


def _is_lost(running: "optuna.trial.FrozenTrial") -> bool:
    """Whether a trial's process has ended without a word, as far as this machine can tell."""
    begun, (host, process) = running.datetime_start, running.user_attrs.get(PROCESS, ("", 0))
    if begun is None or datetime.now() - begun > LOST_AFTER:
        return True
    return bool(host == socket.gethostname() and not Path(f"/proc/{process}").exists() and Path("/proc").exists())


def _suggest(asked: "optuna.Trial", name: str, wanted: Any) -> None:
    """Take a parameter from the sampler, which knows its value."""
    kinds = load_optuna().distributions
    if isinstance(wanted, kinds.CategoricalDistribution):
        asked.suggest_categorical(name, wanted.choices)
    elif isinstance(wanted, kinds.IntDistribution):
        asked.suggest_int(name, wanted.low, wanted.high, log=wanted.log)
    else:
        asked.suggest_float(name, wanted.low, wanted.high, log=wanted.log)


def _open(storage: str) -> Any:
    """A database by its URL, or a journal file."""
    from sqlalchemy.exc import SQLAlchemyError

    optuna = load_optuna()
    try:
        if "://" in storage:
            return optuna.storages.RDBStorage(storage)
        return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(storage))
    except (SQLAlchemyError, ImportError, OSError) as error:
        kind = storage.partition("://")[0] if "://" in storage else storage  # a URL may hold a password
        reason = str(error).partition("\n")[0][:200]
        remedy = "give the path of a journal file, or the URL of a database"
        raise SettingsError(f"cannot be opened ({reason})", where=kind, remedy=remedy, argument="storage") from None
