"""Small instances of the attacks in benchmarks/attack, which are run there by the thousand."""

import random
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest
from benchmarks.attack import kills, power
from benchmarks.attack.cases import GOOD, attempt, watched
from benchmarks.attack.folders import Folders

import paml


def bad(module: str, folder: Path, numbers: Iterable[int]) -> list[str]:
    """How cases ended that did not end as they should; case 0 changes nothing, and must not be refused."""
    case = import_module(f"benchmarks.attack.{module}").prepared(folder, seed=5)
    ended = [case(number) for number in numbers]
    assert ended[0][0] == "same"
    assert {kind for kind, _ in ended} & {"refused"}
    return [f"{kind}: {text}" for kind, text in ended if kind not in GOOD]


@pytest.mark.parametrize("module", ["runs", "datasets", "tables"])
def test_changed_files_are_refused_or_change_nothing(module: str, tmp_path: Path) -> None:
    assert not bad(module, tmp_path, range(40))


def test_an_attack_that_hangs_or_dies_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dying.py").write_text(
        "import os, time\n"
        "def prepared(folder, seed):\n"
        "    return lambda number: (os._exit(1) if number == 1 else time.sleep(99)) if number else ('same', '')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert [ended.kind for ended in watched("dying", [0, 1, 2, 0], seed=0, patience=1.0)] == [
        "same",
        "crash",
        "hang",
        "same",
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("kind", ["runs", "datasets", "archives"])
def test_some_hostile_folders_are_clear_errors(kind: str, folders: Folders) -> None:
    cases = sorted(getattr(folders, kind)().items())
    chosen = random.Random(1).sample(cases, 12)
    for name in ("run ensemble_size=1000000000", "data item tokens", "archive bomb", "archive twice"):
        chosen += [(name, action) for found, action in cases if found == name]
    for name, action in chosen:
        ended, text = attempt(action, (paml.PamlError,))
        assert ended in GOOD, (name, text)


@pytest.mark.attack
def test_all_hostile_folders_are_clear_errors(folders: Folders) -> None:
    for name, action in folders.all().items():
        ended, text = attempt(action, (paml.PamlError,))
        assert ended in GOOD, (name, text)


@pytest.mark.attack
def test_power_loss(tmp_path: Path) -> None:
    rng = random.Random(3)
    assert set(power.trainings(tmp_path / "trainings", 3, rng)) == {"equal"}
    assert set(power.preparations(tmp_path / "preparations", 8, rng)) <= {"complete", "not there, prepared anew"}


@pytest.mark.attack
def test_kills(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=400, items=80).path
    kills.kill_until_done(data, tmp_path / "whole", random.Random(0), 0, 1.0)
    for number in (2, 9, 20, 35):  # before the settings are there, and within both parts
        assert kills.killed_at_sync(data, tmp_path / "killed", number), number
    kills.kill_until_done(data, tmp_path / "killed", random.Random(0), 2, 8.0)
    assert kills.files(tmp_path / "killed") == kills.files(tmp_path / "whole")


def test_what_is_not_synced_is_lost(tmp_path: Path) -> None:
    """The simulation itself: without its syncs, a file that was renamed is empty."""
    disk, root = tmp_path / "disk", tmp_path / "root"
    events = power.recorded(root, disk, "data", "prepare", "synthetic", "users=60", "items=20", "--out", root / "data")
    power.after_power_loss(events, disk, tmp_path / "kept", random.Random(0))
    paml.open_data(tmp_path / "kept" / "data").verify()
    unsynced = [event for event in events if event["kind"] != "content"]
    assert len(unsynced) < len(events) - 10
    power.after_power_loss(unsynced, disk, tmp_path / "lost", random.Random(0))
    assert (tmp_path / "lost" / "data" / "manifest.json").stat().st_size == 0
    renamed = [event for event in events if event["kind"] == "now"]
    for seed in range(6):
        power.after_power_loss([events[0], *renamed], disk, tmp_path / f"seed-{seed}", random.Random(seed))
    assert {(tmp_path / f"seed-{seed}" / "data").exists() for seed in range(6)} == {False, True}
