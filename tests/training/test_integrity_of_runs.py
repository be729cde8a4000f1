"""Every file of a run is covered by a digest; equal trainings are equal files; one training in a folder at a time."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.attack.forge import forge_run

import paml
from paml.errors import FormatError, PamlError, SettingsError
from paml.locks import hold
from training.test_loop import PARTS, QUICK
from waiting import PATIENCE

FILES = [
    *("settings.json", "weights.safetensors", "vocab.json", "catalogue.parquet", "reference_users.parquet"),
    *("metrics.jsonl", "preference.safetensors", "choice/settings.json", "choice/weights.safetensors"),
]


@pytest.fixture(scope="module")
def pair(world: paml.Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[paml.Run, paml.Run]:
    """Two trainings with the same settings."""
    folder = tmp_path_factory.mktemp("pair")
    first, second = (paml.train(world, "melu", out=folder / name, settings=PARTS["both"]) for name in "ab")
    return first, second


@pytest.fixture
def copy(pair: tuple[paml.Run, paml.Run], tmp_path: Path) -> Path:
    return Path(shutil.copytree(pair[0].path, tmp_path / "run"))


def test_equal_trainings_are_equal_files(pair: tuple[paml.Run, paml.Run]) -> None:
    for name in FILES:
        if not name.endswith(("settings.json", "metrics.jsonl")):  # these tell how long it took
            assert (pair[0].path / name).read_bytes() == (pair[1].path / name).read_bytes(), name


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_noticed(name: str, copy: Path) -> None:
    file = copy / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError, match=file.name):
        paml.load(copy)


@pytest.mark.parametrize("name", ["vocab.json", "catalogue.parquet", "reference_users.parquet", "settings.json"])
def test_a_file_of_a_sibling_is_noticed(name: str, copy: Path, tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=400, items=80, world=1)
    sibling = paml.train(data, "melu", out=tmp_path / "sibling", settings=PARTS["both"])
    shutil.copy(sibling.path / name, copy / name)
    with pytest.raises(FormatError, match=rf"{name}: |do not belong together"):
        paml.load(copy)


def test_a_file_that_changes_after_loading_is_noticed_when_it_is_read(copy: Path) -> None:
    run = paml.load(copy)
    (copy / "vocab.json").write_text((copy / "vocab.json").read_text().replace("25", "35"))
    with pytest.raises(FormatError, match=r"vocab.json: differs from what was written"):
        run.adapt({"age": "25"})


@pytest.mark.parametrize(
    "changes",
    [
        {"recipe": {"ensemble_size": 10**9}},
        {"recipe": {"embedding_size": 10**12}},
        {"items": 10**15},
        {"method": "no such method"},
    ],
)
def test_settings_that_ask_for_more_than_the_file_holds_allocate_nothing(
    changes: dict[str, object], copy: Path
) -> None:
    forge_run(copy, **changes)
    with pytest.raises(FormatError, match="does not fit the run's settings"):
        paml.load(copy)


@pytest.mark.parametrize("wrong", [{"ensemble_size": 10**9}, {"hidden": (10**6, 10**6)}, {"embedding_size": 10**9}])
def test_networks_larger_than_the_machine_are_refused(
    wrong: dict[str, int], world: paml.Dataset, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"cannot be built \(.*GB.*; choose smaller sizes"):
        paml.train(world, "paml", "paper", out=tmp_path / "run", settings=wrong)
    assert not (tmp_path / "run").exists()


def test_one_training_in_a_folder_at_a_time(world: paml.Dataset, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    message = rf"run: is in use: process {os.getpid()} on .* is training in it"
    lock = hold(tmp_path / "run" / ".lock", tmp_path / "run", "training in it")
    with lock, pytest.raises(PamlError, match=message):
        paml.train(world, "melu", out=tmp_path / "run", settings=QUICK, reuse=True)
    run = paml.train(world, "melu", out=tmp_path / "run", settings=QUICK, reuse=True)
    assert not list(run.path.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_training_that_is_stopped_says_how_to_go_on(
    number: signal.Signals, code: int, world: paml.Dataset, tmp_path: Path
) -> None:
    arguments = ["train", str(world.path), "--out", "run", "epochs=100000", "choice_part=false", "--threads", "1"]
    program = [sys.executable, "-c", "from paml.cli import main; main()", *arguments]
    process = subprocess.Popen(program, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    ends = time.monotonic() + PATIENCE
    while not (tmp_path / "run" / "resume" / "state.safetensors").exists() and time.monotonic() < ends:
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert errors.splitlines()[-1] == f"stopped; to go on: paml {' '.join(arguments)} --resume"
    assert not list((tmp_path / "run").glob(".lock"))
