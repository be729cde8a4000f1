"""A report made again: the same results, without training and without torch."""

import shutil
import subprocess
import sys
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread

import polars as pl
import pytest

import paml
from paml.analysis.plan import cell_folder, read_plan
from paml.analysis.results import read_results
from paml.errors import FormatError
from paml.report import write_report
from paml.report.refresh import FRAMES, gather, refresh
from report.complete import summarise_again

WITHOUT_ROOT = """
import sys, types
root = types.ModuleType("paml")
root.__path__ = [sys.argv[1]]
sys.modules["paml"] = root  # the public names would import all that they stand for
from paml.errors import FormatError
from paml.report import write_report
from paml.report.refresh import refresh
slow = {"torch", "scipy", "sklearn", "matplotlib"} & set(sys.modules)
assert not slow, slow
refresh(sys.argv[2])
assert "torch" not in sys.modules
"""


def test_a_report_needs_no_torch(ratings: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(ratings, tmp_path / "OUT")
    (folder / "report.html").unlink()
    source = str(Path(paml.__file__).parent)
    command = [sys.executable, "-c", WITHOUT_ROOT, source, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "report.html").exists()
    assert read_results(folder).table == read_results(ratings).table


def in_cells(ratings: Path, folder: Path) -> Path:
    """A copy of the comparison with cells, and without what is gathered from them."""
    shutil.copytree(ratings, folder)
    for name in FRAMES:
        if (folder / f"{name}.parquet").exists():
            for (method, seed), part in pl.read_parquet(folder / f"{name}.parquet").group_by("method", "seed"):
                cell = cell_folder(folder, str(method), int(seed))
                cell.mkdir(parents=True, exist_ok=True)
                part.write_parquet(cell / f"{name}.parquet")
            (folder / f"{name}.parquet").unlink()
    return folder


@pytest.mark.usefixtures("without_pdf")
def test_finished_cells_are_gathered_in_the_order_of_the_plan(ratings: Path, tmp_path: Path) -> None:
    folder = in_cells(ratings, tmp_path / "OUT")
    before = read_results(folder)
    assert refresh(folder).table == before.table
    rows = pl.read_parquet(folder / "rows.parquet")
    assert rows["method"].unique(maintain_order=True).to_list() == read_plan(folder).names()


def test_a_cell_that_is_finished_meanwhile_is_missing(
    ratings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are gathered first and the costs last: a cell with costs and without rows would count as finished."""
    folder = in_cells(ratings, tmp_path / "OUT")
    late, elsewhere = cell_folder(folder, "paml", 1), tmp_path / "late"
    late.rename(elsewhere)

    def write(path: Path, table: pl.DataFrame) -> None:
        table.write_parquet(path)
        if elsewhere.exists():
            elsewhere.rename(late)

    monkeypatch.setattr("paml.report.refresh.write_table", write)
    gather(folder, read_plan(folder))
    assert late.exists()
    assert [(cell.method, cell.seed) for cell in summarise_again(folder).missing] == [("paml", 1)]


@pytest.mark.parametrize("content", [b"", b"no Parquet"])
def test_a_damaged_file_of_a_cell_is_named(ratings: Path, tmp_path: Path, content: bytes) -> None:
    folder = in_cells(ratings, tmp_path / "OUT")
    cell = cell_folder(folder, "paml", 1)
    (cell / "cost.parquet").write_bytes(content)
    with pytest.raises(FormatError, match="cannot be read") as raised:
        refresh(folder)
    assert raised.value.where == str(cell / "cost.parquet")
    assert f"remove the folder {cell} and run" in str(raised.value)


def test_damaged_rows_of_a_comparison_without_cells_are_named(ratings: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(ratings, tmp_path / "OUT")
    (folder / "rows.parquet").write_bytes(b"no Parquet")
    with pytest.raises(FormatError, match="cannot be read") as raised:
        refresh(folder)
    assert raised.value.where == str(folder / "rows.parquet")


def test_reports_at_once_are_written_in_turn(ratings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, results = shutil.copytree(ratings, tmp_path / "OUT"), read_results(ratings)
    both, turns = Barrier(2), []

    def write(_: Path) -> None:
        try:
            both.wait(timeout=0.5)
            turns.append("together")
        except BrokenBarrierError:
            turns.append("alone")

    monkeypatch.setattr("paml.report.refresh.summarise_comparison", lambda _: results)
    monkeypatch.setattr("paml.report.refresh.write_report", write)
    reports = [Thread(target=refresh, args=(folder,)) for _ in range(2)]
    for report in reports:
        report.start()
    for report in reports:
        report.join()
    assert turns == ["alone", "alone"]
    assert not list(folder.glob(".*"))


def test_a_folder_without_a_comparison_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is missing"):
        refresh(tmp_path)
    assert not list(tmp_path.iterdir())


def test_tables_of_an_earlier_report_are_removed_and_others_half_written_ones_are_not(
    ratings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(ratings, tmp_path / "OUT")
    earlier, half = folder / "tables" / "earlier.txt", folder / "tables" / ".comparison.txt.partial2"
    earlier.write_text("old")
    half.write_text("half")
    monkeypatch.setattr("paml.report.figures.figures", lambda *_: {})
    write_report(folder)
    assert not earlier.exists()
    assert half.exists()
