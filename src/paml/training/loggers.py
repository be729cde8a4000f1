"""Where the epochs of a training are logged besides its own files: TensorBoard, MLflow, Weights & Biases.

A logger is named as text, `tensorboard:DIR`, `mlflow[:URI]` or `wandb[:PROJECT]`; what is not said there, such as a
server or that it should work offline, is said by the environment variables of MLflow and Weights & Biases. A training
that is resumed is logged from its first epoch again, so that every log is complete.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from paml.errors import SettingsError, nearest

PROJECT = "paml"


class Logger(Protocol):
    """The log of one training."""

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """Log what was measured in an epoch, counted from 1."""

    def close(self, *, finished: bool) -> None:
        """End the log; `finished` says whether the training came to its end."""


@dataclass(frozen=True)
class Training:
    """What is logged once: the name of a training, and its settings."""

    name: str
    settings: Mapping[str, Any]
    part: str = ""
    """Which part of the run it trains, if not the first."""


OpenLogger = Callable[[Training], Logger]


class TensorBoardLogger:
    """Curves in a folder for TensorBoard; each further part of a run in a folder below it."""

    def __init__(self, place: str, training: Training) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(Path(place) / training.part))

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """A point of each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch)

    def close(self, *, finished: bool) -> None:
        """Write what is left."""
        self._writer.close()


class MlflowLogger:
    """A run of MLflow, in the experiment MLFLOW_EXPERIMENT_NAME or `paml`; MLflow's global state is left alone."""

    def __init__(self, place: str, training: Training) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client: Any = MlflowClient(tracking_uri=place or None)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        self._run = self._client.create_run(experiment, run_name=training.name).info.run_id
        self._client.log_batch(self._run, params=[Param(key, str(one)) for key, one in training.settings.items()])

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """A value of each metric, at the step of the epoch."""
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=epoch)

    def close(self, *, finished: bool) -> None:
        """End MLflow's run."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


class WandbLogger:
    """A run of Weights & Biases; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, place: str, training: Training) -> None:
        import wandb

        project = place or os.environ.get("WANDB_PROJECT", PROJECT)
        self._run: Any = wandb.init(
            project=project, name=training.name, config=dict(training.settings), reinit="create_new"
        )

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        """A value of each metric, at the step of the epoch."""
        self._run.log(dict(values), step=epoch)

    def close(self, *, finished: bool) -> None:
        """End the run and, unless it is offline, wait until all is sent."""
        self._run.finish(exit_code=0 if finished else 1)


@dataclass(frozen=True)
class Kind:
    """A kind of logger: what opens it, and the package it needs."""

    open: Callable[[str, Training], Logger]
    package: str
    place: str
    """What may follow its name."""
    needs_place: bool = False


KINDS = {
    "tensorboard": Kind(TensorBoardLogger, "tensorboard", "DIR", needs_place=True),
    "mlflow": Kind(MlflowLogger, "mlflow", "URI"),
    "wandb": Kind(WandbLogger, "wandb", "PROJECT"),
}


def find_logger(text: str) -> OpenLogger:
    """What opens the logger that a text names; a SettingsError if it is unknown or its package is missing."""
    name, _, place = text.partition(":")
    if name not in KINDS:
        raise SettingsError(f"unknown logger '{name}'", remedy=nearest(name, KINDS), argument="log")
    kind = KINDS[name]
    if kind.needs_place and not place:
        raise SettingsError(f"{name} has no place to log to", remedy=f"give {name}:{kind.place}", argument="log")
    if find_spec(kind.package) is None:
        raise SettingsError(
            f"the logger '{name}' needs the package '{kind.package}'", remedy=f"pip install 'paml[{name}]'"
        )
    return lambda training: kind.open(place, training)


@contextmanager
def logging_to(openers: Sequence[OpenLogger], training: Training) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Open loggers; what is yielded logs a line of a training's history to all of them."""
    loggers: list[Logger] = []
    finished = False

    def log(line: Mapping[str, Any]) -> None:
        values = {name: float(value) for name, value in line.items() if name != "epoch" and value is not None}
        for logger in loggers:
            logger.log(line["epoch"], values)

    try:
        for opener in openers:
            loggers.append(opener(training))  # noqa: PERF401 - those that are open are closed if the next fails
        yield log
        finished = True
    finally:
        for logger in loggers:
            logger.close(finished=finished)
