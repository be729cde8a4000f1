"""A comparison's finished cells -> rows, results and report, as often as you like; no training, and no torch."""

from pathlib import Path

import polars as pl

from paml.analysis.plan import Plan, cell_folder, read_plan
from paml.analysis.results import Results, write_results
from paml.analysis.summarise import summarise_comparison
from paml.files import read_parquet, write_table
from paml.locks import take_turns
from paml.report import write_report

FRAMES = ("rows", "scenarios", "pooled", "predictions", "embeddings", "history", "cost")
LOCK = ".report.lock"
"""Not that of a comparison at work: its report may be made meanwhile."""


def refresh(folder: str | Path) -> Results:
    """Gather the finished cells, and write results and report again; two that do so at once take turns."""
    folder = Path(folder)
    read_plan(folder)  # before anything is written there
    try:
        with take_turns(folder / LOCK):
            gather(folder, read_plan(folder))
            results = summarise_comparison(folder)
            write_results(folder, results)
            write_report(folder)
    except OSError as error:
        if str(error.filename) == str(folder / LOCK):  # a name that nobody has given
            error.filename = str(folder)
        raise
    return results


def gather(folder: Path, plan: Plan) -> None:
    """One file of each kind from the finished cells of the plan, in the plan's order.

    A cell that is finished meanwhile is in none of them.
    """
    planned = [cell_folder(folder, name, seed) for name in plan.names() for seed in plan.seeds]
    cells = [cell for cell in planned if cell.exists()]
    if not cells:
        return  # a folder that was copied without its cells keeps what was gathered before
    for frame in FRAMES:
        files = [file for cell in cells if (file := cell / f"{frame}.parquet").exists()]
        target = folder / f"{frame}.parquet"
        if not files:
            target.unlink(missing_ok=True)
            continue
        write_table(target, pl.concat([_read(file) for file in files], how="diagonal_relaxed"))


def _read(file: Path) -> pl.DataFrame:
    """A frame of a cell."""
    remedy = f"remove the folder {file.parent} and run the same `paml compare` again, which does this cell anew"
    return read_parquet(file, remedy)
