"""Training a run: its parts one after the other, each by the outer loop (loop.py), then what lists are ordered by.

A part is a rating or click part, or a choice part; a run has either or both, and on a data set of choices the latter.
Each is resumed where it stopped.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

from paml.data.dataset import Dataset
from paml.errors import InUse, PamlError, SettingsError, TooLarge
from paml.files import exists, make_folder, sync_folder, unreadable
from paml.locks import NAME as LOCK, hold
from paml.methods.registry import find_method, origins_of
from paml.network.build import DataShape
from paml.progress import SILENT, Progress, chosen
from paml.settings import check_seed, require_same
from paml.training import restarts
from paml.training.allocator import keep_freed_memory
from paml.training.capacity import enough_memory, require_memory
from paml.training.device import choose_device
from paml.training.keywords import TrainSettings
from paml.training.loggers import OpenLogger, find_logger
from paml.training.loop import OnEpoch, Trainer
from paml.training.preference import finish_preference
from paml.training.ranks import Ranks, joined
from paml.training.recipe import CHOICE, Recipe, parts_of, recipe_label
from paml.training.run import AGAIN, WEIGHTS, Run, RunSettings, choice_folder, read_settings, write_settings

DEFAULT_FOLDER = Path("paml-runs")
PARALLEL = ("users", "members")
"""What processes that train together share."""
OTHER_FOLDER = "choose another folder"


def train(
    data: Dataset | str | Path,
    method: str = "ridge",
    recipe: str | Path = "tuned",
    *,
    seed: int = 0,
    out: str | Path | None = None,
    reuse: bool = False,
    device: str = "auto",
    parallel: str = "users",
    log: str | Sequence[str] = (),
    progress: Progress | bool | None = None,
    on_epoch: OnEpoch | None = None,
    settings: Mapping[str, Any] | None = None,
    **more: Unpack[TrainSettings],
) -> Run:
    """Train `method` on a prepared data set and return the run.

    `data` is a data set or its folder, `recipe` a name or a .toml file; `settings` and further keywords replace single
    settings of the recipe. `out` is the folder of the run; with `reuse`, a run that the same call has begun there is
    continued, and one that it has finished is returned; a run of other data or settings is refused.
    `device` is "auto" or a torch device; `log` names loggers of epochs: `tensorboard:DIR`, `mlflow` or `mlflow:URI`,
    `wandb` or `wandb:PROJECT`. Processes started by torchrun share the users of every batch or, with
    `parallel="members"`, the members of the ensemble; the first one writes. After every epoch `on_epoch` gets its
    number, from 1, and its validation metric; if it raises, training ends and can be resumed. Bars are shown on a
    terminal and in notebooks; `progress=False` turns them off, `progress=True` prints lines elsewhere.

    >>> run = paml.train(data, out="run", seed=1, epochs=1)
    >>> run.settings.summary["epochs"]
    1
    """
    check_seed(seed)
    data = Dataset.of(data)
    loggers = [find_logger(one) for one in ([log] if isinstance(log, str) else log)]
    find_method(method)
    if parallel not in PARALLEL:
        raise SettingsError(f"parallel is {parallel!r}", remedy=f"expected {' or '.join(PARALLEL)}")
    ranks, by_members = joined(), parallel == "members"
    shown = chosen(progress) if ranks.is_first else SILENT
    data.verify_once(shown)
    given = {**(settings or {}), **more}
    default_name = f"{data.manifest.source.name}-{method}-{recipe_label(recipe)}-{seed}"
    folder = Path(out) if out is not None else DEFAULT_FOLDER / default_name
    parts = {
        choice_folder(folder) if name == CHOICE else folder: _settings(data, trained, recipe, values, seed)
        for name, (trained, values) in parts_of(data, recipe, method, given).items()
    }
    restarted = restarts.was_restarted(ranks)
    if reuse or restarted:
        parts = {path: _as_begun(path, wanted) for path, wanted in parts.items()}
    trainers = [
        _trainer(data, wanted, path, device, loggers, "" if path == folder else path.name, ranks, by_members=by_members)
        for path, wanted in parts.items()
    ]
    with ExitStack() as stack:
        ranks.first(lambda: stack.enter_context(_alone_in(folder, reuse=reuse, restarted=restarted)))
        ranks.first(lambda: _begin_parts(parts))
        for trainer, path in zip(trainers, parts, strict=True):
            if not ranks.first(partial(exists, path / WEIGHTS, AGAIN)):
                keep_freed_memory()
                trainer.run(shown, on_epoch if path == folder and ranks.is_first else None)
            ranks.first(partial(_remove_leftovers, path))
        if any(wanted.recipe.head == CHOICE for wanted in parts.values()):
            with enough_memory(folder):
                ranks.first(lambda: finish_preference(data, folder, shown))
        return Run.load(folder)


def _as_begun(path: Path, wanted: RunSettings) -> RunSettings:
    """What is wanted, with the recipe called as it was then: the same file may be named in another way."""
    try:
        return wanted.model_copy(update={"recipe_name": read_settings(path).recipe_name})
    except PamlError:  # nothing is there, or what will be refused
        return wanted


def _trainer(
    data: Dataset,
    wanted: RunSettings,
    path: Path,
    device: str,
    loggers: Sequence[OpenLogger],
    part: str,
    ranks: Ranks,
    *,
    by_members: bool,
) -> Trainer:
    """The outer loop of one part; settings that do not fit are an error before anything is trained."""
    try:
        require_memory(wanted)
        return Trainer(data, wanted, path, choose_device(device), loggers, part, ranks, by_members=by_members)
    except (RuntimeError, MemoryError) as error:
        what = f"the network cannot be built ({str(error).splitlines()[0]})"
        raise TooLarge(what, remedy="choose smaller sizes") from None


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
        packages={origin.package: origin.version for origin in origins_of(method)},
    )


@contextmanager
def _alone_in(folder: Path, *, reuse: bool, restarted: bool) -> Iterator[None]:
    """Create the run folder, or enter an existing one to go on; nobody else trains in it meanwhile."""
    if not restarted and restarts.began(folder):
        with suppress(InUse), hold(folder / LOCK, folder, "looking at it"):  # a job that is at work keeps its mark
            restarts.forget(folder)
    if not reuse and not _is_fresh(folder) and not restarts.began(folder):
        remedy = "choose another folder, or reuse what is in it"
        raise PamlError("already exists", where=folder, remedy=remedy, argument="reuse")
    make_folder(folder)
    with hold(folder / LOCK, folder, "training in it"):
        restarts.note(folder)
        yield


def _remove_leftovers(folder: Path) -> None:
    """What was needed until the weights were there: killed right after that, a training has left it behind."""
    shutil.rmtree(folder / "resume", ignore_errors=True)
    for half in folder.glob(".*.partial"):
        half.unlink(missing_ok=True)


def _is_fresh(folder: Path) -> bool:
    """Whether nothing is in a folder but half-written files: killed before the settings were stored."""
    if not exists(folder, OTHER_FOLDER):
        return True
    try:
        return folder.is_dir() and all(file.name.startswith(".") for file in folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error, OTHER_FOLDER) from None


def _begin_parts(parts: Mapping[Path, RunSettings]) -> None:
    """All parts, before any is trained: what was asked for is known from the start."""
    for folder, wanted in parts.items():
        _begin_or_go_on(folder, wanted)


def _begin_or_go_on(folder: Path, wanted: RunSettings) -> None:
    """Store what a part is, or check that the one there was begun with the same data and settings."""
    if _is_fresh(folder):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
        write_settings(folder, wanted)
        return
    found = read_settings(folder)
    if found.fingerprint != wanted.fingerprint:
        remedy = "give that data set, or choose another folder"
        what = f"was begun with another data set ({found.fingerprint[:12]}, now {wanted.fingerprint[:12]})"
        raise SettingsError(what, where=folder, remedy=remedy, argument="out")
    require_same(_given(found), _given(wanted), folder)


def _given(settings: RunSettings) -> dict[str, Any]:
    """What people choose, by name."""
    return {"method": settings.method, "seed": settings.seed, **settings.recipe.model_dump()}
