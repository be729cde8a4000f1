"""Training a run: its parts one after the other, each by the outer loop (loop.py), then what lists are ordered by.

A part is a rating or click part, or a choice part; a run has either or both. Each is resumed where it stopped.
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paml.data.dataset import Dataset
from paml.errors import PamlError, SettingsError
from paml.methods.registry import find_method
from paml.network.build import DataShape
from paml.progress import SILENT, Progress
from paml.training.allocator import keep_freed_memory
from paml.training.device import choose_device
from paml.training.loop import OnEpoch, Trainer
from paml.training.preference import finish_preference
from paml.training.recipe import CHOICE, Recipe, choice_recipe, recipe_for, recipe_label
from paml.training.run import Run, RunSettings, choice_folder, read_settings, write_settings

DEFAULT_FOLDER = Path("paml-runs")


def train(
    data: Dataset | str | Path,
    method: str = "ridge",
    recipe: str | Path = "tuned",
    *,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    tensorboard: str | Path | None = None,
    progress: Progress = SILENT,
    on_epoch: OnEpoch | None = None,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> Run:
    """Train `method` on a prepared data set and return the run.

    `data` is a data set or its folder, `recipe` a name or a .toml file; `settings` and further keywords replace single
    settings of the recipe. `out` is the folder of the run; with `resume`, an interrupted run is continued there.
    `device` is "auto" or a torch device, `tensorboard` a folder for logs. After every epoch `on_epoch` gets its number,
    from 1, and its validation metric; if it raises, training ends and can be resumed.

    >>> run = paml.train(data, out="run", seed=1, epochs=1)
    >>> run.settings.summary["epochs"]
    1
    """
    data = data if isinstance(data, Dataset) else Dataset.open(data)
    find_method(method)
    given = {**(settings or {}), **more}
    values = recipe_for(data, recipe, method, given)
    default_name = f"{data.manifest.source.name}-{method}-{recipe_label(recipe)}-{seed}"
    folder = Path(out) if out is not None else DEFAULT_FOLDER / default_name
    parts = {folder: _settings(data, method, recipe, values, seed)}
    if values.choice_part and values.head != CHOICE:
        chooser = values.choice_method or method
        find_method(chooser)
        choice = choice_recipe(data, recipe, chooser, given, method)
        if choice.exclude_fields != values.exclude_fields:
            raise SettingsError("both parts of a run have the same fields", remedy="set exclude_fields for both")
        parts[choice_folder(folder)] = _settings(data, chooser, recipe, choice, seed)
    trainers = [_trainer(data, wanted, path, device, tensorboard) for path, wanted in parts.items()]
    for trainer, (path, wanted) in zip(trainers, parts.items(), strict=True):
        _open_folder(path, wanted, resume=resume or path != folder)
        if not (path / "weights.safetensors").exists():
            keep_freed_memory()
            trainer.run(progress, on_epoch if path == folder else None)
    if any(wanted.recipe.head == CHOICE for wanted in parts.values()):
        finish_preference(data, folder, progress)
    return Run.load(folder)


def _trainer(data: Dataset, wanted: RunSettings, path: Path, device: str, tensorboard: str | Path | None) -> Trainer:
    """The outer loop of one part; settings that do not fit are an error before anything is trained."""
    try:
        return Trainer(data, wanted, path, choose_device(device), tensorboard)
    except (RuntimeError, MemoryError) as error:
        what = f"the network cannot be built ({str(error).splitlines()[0]})"
        raise SettingsError(what, remedy="choose smaller sizes") from None


def _settings(data: Dataset, method: str, recipe: str | Path, values: Recipe, seed: int) -> RunSettings:
    """What a part of a run is, before it is trained."""
    shape = DataShape.of(data, values.exclude_fields)
    return RunSettings(
        created_by=f"paml {version('paml')}",
        method=method,
        recipe_name=str(recipe),
        recipe=values,
        seed=seed,
        data_path=str(data.path.resolve()),
        fingerprint=data.fingerprint,
        major_above=data.manifest.protocol.major_above,
        data_schema=shape.schema,
        vocabulary=shape.vocabulary,
        items=shape.items,
        known_items=shape.known_items,
        training_mean=shape.training_mean,
    )


def _open_folder(folder: Path, wanted: RunSettings, *, resume: bool) -> None:
    """Create the run folder, or check that an unfinished one was begun with the same settings."""
    # only a half-written file: killed before the settings were stored
    if not folder.exists() or (folder.is_dir() and all(file.name.startswith(".") for file in folder.iterdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot be written ({error.strerror})"
            raise PamlError(what, where=folder, remedy="choose another folder", argument="out") from None
        write_settings(folder, wanted)
        return
    if not resume:
        remedy = "choose another folder, or resume the training in it"
        raise PamlError("already exists", where=folder, remedy=remedy, argument="resume")
    found = read_settings(folder)
    for name in ("fingerprint", "method", "seed", "recipe"):
        if getattr(found, name) != getattr(wanted, name):
            raise SettingsError(f"was begun with another {name}", where=folder, remedy="repeat what it was begun with")
