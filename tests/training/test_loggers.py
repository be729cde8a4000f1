"""Loggers get what a run's own file has: the real packages, where they are installed."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import paml
from paml.errors import SettingsError
from paml.training import loggers
from paml.training.loggers import Kind, Training, find_logger

SMALL = {"epochs": 2, "ensemble_size": 1}


def needs(package: str) -> pytest.MarkDecorator:
    missing = find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install 'paml[{package}]'")


def history(run: paml.Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


class Remembering:
    """A logger of somebody else's, which remembers."""

    def __init__(self, place: str, training: Training) -> None:
        self.place, self.training = place, training
        self.lines: dict[int, dict[str, float]] = {}
        self.finished: bool | None = None

    def log(self, epoch: int, values: Mapping[str, float]) -> None:
        assert self.finished is None
        self.lines[epoch] = dict(values)

    def close(self, *, finished: bool) -> None:
        self.finished = finished


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Remembering]:
    found: list[Remembering] = []

    def remember(place: str, training: Training) -> Remembering:
        found.append(Remembering(place, training))
        return found[-1]

    monkeypatch.setitem(loggers.KINDS, "memory", Kind(remember, "json", "PLACE"))
    return found


def test_each_part_is_logged_with_its_settings(world: paml.Dataset, tmp_path: Path, opened: list[Remembering]) -> None:
    run = paml.train(world, out=tmp_path / "run", log="memory:here", settings={**SMALL, "choice_part": True})
    first, second = opened
    assert (first.training.name, second.training.name) == ("run", "run/choice")
    assert first.place == "here"
    assert first.training.settings["epochs"] == 2
    assert first.training.settings["method"] == "ridge"
    assert first.finished
    assert second.finished
    for line in history(run):
        expected = {name: value for name, value in line.items() if name != "epoch"}
        assert first.lines[line["epoch"]] == expected
    assert set(second.lines) == {1, 2}


def test_an_interrupted_training_is_ended_as_such_and_resumed_from_its_first_epoch(
    world: paml.Dataset, tmp_path: Path, opened: list[Remembering]
) -> None:
    def stop(epoch: int, value: float | None) -> None:
        raise KeyboardInterrupt

    settings = {**SMALL, "choice_part": False}
    with pytest.raises(KeyboardInterrupt):
        paml.train(world, out=tmp_path / "run", log=["memory"], on_epoch=stop, settings=settings)
    assert (set(opened[0].lines), opened[0].finished) == ({1}, False)
    paml.train(world, out=tmp_path / "run", log=["memory"], reuse=True, settings=settings)
    assert (set(opened[1].lines), opened[1].finished) == ({1, 2}, True)


def test_a_logger_that_cannot_be_used_is_an_error_before_training(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match="unknown logger 'mlflo'; did you mean 'mlflow'"):
        paml.train(world, out=tmp_path / "run", log="mlflo")
    with pytest.raises(SettingsError, match="no place to log to; give tensorboard:DIR"):
        find_logger("tensorboard")
    monkeypatch.setitem(loggers.KINDS, "wandb", Kind(Remembering, "no_such_package", "PROJECT"))
    with pytest.raises(SettingsError, match=r"needs the package 'no_such_package'; pip install 'paml\[wandb\]'"):
        find_logger("wandb")
    assert not (tmp_path / "run").exists()


@needs("tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_curves(world: paml.Dataset, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = paml.train(world, out=tmp_path / "run", log=f"tensorboard:{tmp_path / 'logs'}", settings=SMALL)
    found = EventAccumulator(str(tmp_path / "logs")).Reload().Scalars("loss")
    assert [(one.step, one.value) for one in found] == [
        (line["epoch"], pytest.approx(line["loss"])) for line in history(run)
    ]


@needs("mlflow")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_curves_and_the_settings(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    place = (tmp_path / "mlruns").as_uri()
    run = paml.train(world, out=tmp_path / "run", log=f"mlflow:{place}", settings={**SMALL, "choice_part": False})
    client = MlflowClient(tracking_uri=place)
    experiment = client.get_experiment_by_name("paml")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["epochs"] == "2"
    curve = client.get_metric_history(found.info.run_id, "loss")
    assert [(one.step, one.value) for one in curve] == [(line["epoch"], line["loss"]) for line in history(run)]


@needs("wandb")
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_keeps_a_run_offline(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    paml.train(world, out=tmp_path / "run", log="wandb:cold", settings={**SMALL, "choice_part": False})
    (stored,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    text = stored.read_bytes()
    for word in (b"validation_mse", b"users_per_second", b"fingerprint"):
        assert word in text
