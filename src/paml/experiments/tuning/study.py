"""Trials of a search, and which settings to try next: the one place that knows Optuna.

A study is rebuilt from the trials so far whenever the next one is wanted, so that only their log must be kept.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paml.errors import FormatError, SettingsError
from paml.experiments.tuning.space import is_whole, place
from paml.methods.spaces import Among, Range, Space

if TYPE_CHECKING:
    import optuna

STARTUP_TRIALS = 5  # finished trials before one may be pruned
KEPT_PERCENT = 75.0  # a trial is pruned if it is worse than this share of the finished ones at the same epoch


@dataclass(frozen=True)
class Trial:
    """A line of the log."""

    number: int
    state: str
    """`finished`, `pruned` (others were better after as many epochs) or `diverged`."""
    validation: float | None
    epoch: int | None
    """The best epoch, from 1."""
    settings: dict[str, Any]
    history: list[float]
    """Validation of every epoch."""
    seconds: float
    reason: str | None = None


def read_log(path: Path) -> list[Trial]:
    """The trials so far; none where there is no log yet."""
    if not path.exists():
        return []
    try:
        trials = [Trial(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (ValueError, TypeError) as error:
        what = f"cannot be read ({error})"
        raise FormatError(what, where=path, remedy="choose another folder", argument="out") from None
    if [trial.number for trial in trials] != list(range(len(trials))):
        raise FormatError("has lines missing", where=path, remedy="choose another folder", argument="out")
    return trials


def load_optuna() -> Any:
    """Optuna, which is imported only where it is needed."""
    try:
        import optuna
    except ImportError:
        raise SettingsError("Optuna is not installed", remedy="pip install 'paml[tune]'") from None
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's own log: the progress and our log say the same."""
    logging = load_optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def propose(
    trials: Sequence[Trial],
    space: Space,
    seed: int,
    epochs: int,
    *,
    number: int | None = None,
    under_way: Sequence[Mapping[str, Any]] = (),
) -> "optuna.Trial":
    """The next trial, from a study made of the earlier ones; it is not pruned in its first third of epochs.

    `number` is the trial's own, if that is not the number of earlier ones; `under_way` has the settings of trials that
    have not ended, which the sampler keeps away from.
    """
    optuna = load_optuna()
    # TPE over all settings at once sees that, say, larger batches want a larger rate.
    sampler = optuna.samplers.TPESampler(
        seed=int(np.random.SeedSequence([seed, len(trials) if number is None else number]).generate_state(1)[0]),
        multivariate=True,
        constant_liar=bool(under_way),
    )
    # Patient, as first epochs say little: a median pruner from the second epoch on ended a near copy of the best trial.
    pruner = optuna.pruners.PercentilePruner(KEPT_PERCENT, STARTUP_TRIALS, max(1, epochs // 3))
    study = optuna.create_study(direction="minimize", sampler=sampler, pruner=pruner)
    states = optuna.trial.TrialState
    for trial in trials:
        finished = trial.state == "finished"
        study.add_trial(
            optuna.create_trial(
                # a diverged trial counts as pruned, so that the sampler learns to stay away
                state=states.COMPLETE if finished else states.PRUNED,
                value=trial.validation if finished else None,
                intermediate_values={} if trial.state == "diverged" else dict(enumerate(trial.history)),
                **placed(trial.settings, space),
            )
        )
    for settings in under_way:
        study.add_trial(optuna.create_trial(state=states.RUNNING, **placed(settings, space)))
    return study.ask({name: distribution(name, range_) for name, range_ in space.items()})  # type: ignore[no-any-return]


def placed(settings: Mapping[str, Any], space: Space) -> dict[str, dict[str, Any]]:
    """Settings as a trial of a study has them, with their distributions.

    Some of the start's may lie outside the space: the study does not learn from those.
    """
    values = {name: place(name, space[name], value) for name, value in settings.items()}
    inside = {name: value for name, value in values.items() if value is not None}
    return {"params": inside, "distributions": {name: distribution(name, space[name]) for name in inside}}


def distribution(name: str, range_: Range | Among) -> Any:
    """A range as an Optuna distribution."""
    distributions = load_optuna().distributions
    if not isinstance(range_, Range):
        return distributions.CategoricalDistribution(range_.choices)
    if is_whole(name):
        return distributions.IntDistribution(int(range_.low), int(range_.high), log=range_.log)
    return distributions.FloatDistribution(range_.low, range_.high, log=range_.log)
