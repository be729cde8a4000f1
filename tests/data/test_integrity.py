"""A data set is verified before it is trained on: digests, shapes, ranges; archives and files that are traps."""

import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from benchmarks.attack.folders import ARRAYS
from benchmarks.attack.forge import forge

import paml
from paml.cli import main
from paml.data.dataset import Dataset
from paml.errors import DataError, FormatError
from waiting import PATIENCE


@pytest.fixture
def copy(world: Dataset, tmp_path: Path) -> Path:
    return Path(shutil.copytree(world.path, tmp_path / "data"))


def test_mirrored_ratings_are_noticed(copy: Path, tmp_path: Path) -> None:
    file = copy / "arrays" / "target.npy"
    np.save(file, 6 - np.load(file))
    for use in (
        lambda: paml.train(copy, out=tmp_path / "run", epochs=1),
        lambda: paml.compare(copy, ["melu"], 1, baselines=[], out=tmp_path / "comparison"),
        lambda: paml.tune(copy, "melu", out=tmp_path / "search"),
    ):
        with pytest.raises(FormatError, match=r"target.npy: differs from what was written"):
            use()


def test_a_run_is_not_evaluated_on_changed_data(run: paml.Run, copy: Path) -> None:
    file = copy / "arrays" / "target.npy"
    np.save(file, 6 - np.load(file))
    with pytest.raises(FormatError, match=r"target.npy: differs"):
        run.data(copy)


def test_what_was_verified_is_read_again_only_if_it_changed(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    verify = Dataset.verify
    monkeypatch.setattr(Dataset, "verify", lambda data: (read.append(data.path), verify(data)))
    for _ in range(3):
        paml.open_data(copy).verify_once()
    assert len(read) == 1
    file = copy / "arrays" / "support.npy"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FormatError, match=r"support.npy: differs"):
        paml.open_data(copy).verify_once()
    file.write_bytes(data)
    paml.open_data(copy).verify_once()
    assert len(read) == 3


@pytest.mark.parametrize("content", ARRAYS)
def test_an_array_with_a_bad_header_is_a_clear_error(content: str, copy: Path) -> None:
    (copy / "arrays" / "item.npy").write_bytes(ARRAYS[content])
    forge(copy)
    with pytest.raises(FormatError, match=r"item.npy: is damaged"):
        paml.open_data(copy).array("item")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("item", lambda array: array + 1000),
        ("item", lambda array: -array),
        ("item", lambda array: array[:-1]),
        ("offsets", lambda array: array[::-1]),
        ("offsets", lambda array: array // 2),
        ("support", lambda array: array + 10_000),
        ("target", lambda array: array * np.float32(np.nan)),
        ("user.age", lambda array: array + 100),
        ("item.genre.offsets", lambda array: array * 2),
        ("item.year", lambda array: array[:-1]),
        ("major", lambda array: array[:-1]),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(name: str, change, copy: Path) -> None:  # type: ignore[no-untyped-def]
    file = copy / "arrays" / f"{name}.npy"
    np.save(file, change(np.load(file)))
    forge(copy)
    with pytest.raises(FormatError, match=rf"{name}.npy: does not fit the manifest"):
        paml.open_data(copy).verify()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"users": 0}, "does not list the files|does not fit"),
        ({"items": 10**12}, r"items.parquet: does not fit the manifest \(its number of rows\)"),
        ({"splits": {"train": (0, 5), "validation": (5, 5), "test": (5, 10**9)}}, "its splits"),
    ],
)
def test_a_forged_manifest_is_refused(changes: dict[str, object], message: str, copy: Path) -> None:
    forge(copy, fingerprint=True, **changes)
    with pytest.raises(FormatError, match=message):
        paml.open_data(copy).verify()


def test_a_data_set_of_another_format_names_the_command(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(copy)  # with a protocol that is not the usual one
    settings = {"seed": 4, "cold_share": 1.0, "drop_invalid_profiles": False}
    fingerprint = paml.prepare("synthetic", out=copy, users=400, items=80, settings=settings).fingerprint
    file = copy / "manifest.json"
    file.write_text(file.read_text().replace('"format": 3', '"format": 2', 1))
    monkeypatch.setattr(sys, "argv", ["paml", "data", "describe", str(copy)])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert "is of format 2, and this version reads format 3; prepare the data set again (paml data prepare " in said
    assert "synthetic users=400 items=80 target=rating" in said
    assert said.count(f"--out {copy}-new)") == 1
    monkeypatch.setattr(sys, "argv", shlex.split(said[said.rindex("(") + 1 : said.rindex(")")]))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert paml.open_data(f"{copy}-new").fingerprint == fingerprint


def archive(tables: Path, path: Path, **extra: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in tables.iterdir():
            if file.name not in extra:
                packed.write(file, file.name)
        for name, content in extra.items():
            packed.writestr(name.replace("_", "/"), content)
    return path


def test_an_archive_that_unpacks_to_far_more_is_refused(tables: Path, tmp_path: Path) -> None:
    path = archive(tables, tmp_path / "bomb.zip", **{"ratings.csv": bytes(300 << 20)})
    with pytest.raises(
        DataError, match=r"'ratings.csv' would unpack to 314,572,800 bytes, [\d,]+ times its packed size"
    ):
        paml.prepare("tables", path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_that_occur_twice_in_an_archive_are_refused(tables: Path, tmp_path: Path) -> None:
    path = archive(tables, tmp_path / "twice.zip", **{"._ratings.csv": b"uid,movie,stars,when\n"})
    with pytest.raises(DataError, match=r"twice.zip: has the file 'ratings.csv' twice"):
        paml.prepare("tables", path, tmp_path / "out")


@pytest.mark.parametrize("encoding", ["idna", "undefined", "hex", "utf\\u0000", "punycode"])
def test_odd_encodings_are_clear_errors(encoding: str, tables: Path, tmp_path: Path) -> None:
    schema = tables / "schema.toml"
    schema.write_text(f'encoding = "{encoding}"\n{schema.read_text()}')
    (tables / "ratings.csv").write_bytes((tables / "ratings.csv").read_bytes() + b"\xff..\x80\n")
    with pytest.raises(DataError):
        paml.prepare("tables", tables, tmp_path / "out")


def test_a_table_of_thousands_of_columns_is_read_and_one_of_too_many_not_guessed(tables: Path, tmp_path: Path) -> None:
    file = tables / "ratings.csv"
    lines = file.read_text().splitlines()
    more = [",".join(["", *(f"c{k}" for k in range(5000))]), *["," * 5000] * (len(lines) - 1)]
    file.write_text("".join(f"{line}{rest}\n" for line, rest in zip(lines, more, strict=True)) + "bad line\n")
    started = time.monotonic()
    data = paml.prepare("tables", tables, tmp_path / "out", skip_bad_lines=True, cold_share=1)
    assert data.manifest.interactions == len(lines) - 1
    assert data.manifest.source.bad_lines == 1
    with pytest.raises(DataError, match="has 5,004 columns; keep the columns you need"):
        paml.inspect([file])
    assert time.monotonic() - started < PATIENCE


def test_a_scale_of_endless_levels_is_refused() -> None:
    with pytest.raises(paml.SettingsError, match="at most 100,000 steps"):
        paml.settings.build(paml.data.schema.Target, {"kind": "rating", "low": 0, "high": 1, "step": 1e-12})


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_preparation_that_is_stopped_says_so_and_leaves_nothing(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    arguments = ["data", "prepare", "synthetic", "users=2000000", "--out", "data"]
    program = [sys.executable, "-c", "from paml.cli import main; main()", *arguments]
    process = subprocess.Popen(program, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    ends = time.monotonic() + PATIENCE
    while not (tmp_path / ".data.partial").exists() and time.monotonic() < ends:
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, errors
    assert errors.splitlines()[-1] == (
        "stopped; nothing half-written was kept; to begin again: paml data prepare synthetic users=2000000 --out data"
    )
    assert not list(tmp_path.iterdir())


def test_tables_are_covered_as_well(copy: Path) -> None:
    file = copy / "users.parquet"
    pl.read_parquet(file).reverse().write_parquet(file, row_group_size=1 << 20)
    with pytest.raises(FormatError, match=r"users.parquet: (differs|is missing or has a different size)"):
        paml.open_data(copy).verify_once()
