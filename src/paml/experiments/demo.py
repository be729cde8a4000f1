"""The demonstration: every method and baseline on the embedded data set, and a report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paml.analysis.results import Results
from paml.baselines.registry import baselines_for, rankers_for
from paml.data.dataset import Dataset
from paml.data.prepare import prepare
from paml.experiments.compare import compare
from paml.progress import SILENT, Progress

Target = Literal["rating", "click"]
WORLDS: dict[Target, dict[str, Any]] = {"rating": {"target": "rating"}, "click": {"target": "click"}}
"""Settings of the embedded data sets."""
SEEDS = 2
# enough to see what happens, in less than three minutes on two cores
FEW = {"epochs": 10, "ensemble_size": 2}
SHORT: dict[Target, dict[str, Any]] = {"rating": {**FEW, "choice.ensemble_size": 1}, "click": FEW}


@dataclass(frozen=True)
class DemoResult:
    """The prepared data, the comparison's folder and results, and baselines whose packages are not installed."""

    data: Dataset
    folder: Path
    results: Results
    left_out: list[str]


def run_demo(out: Path, target: Target = "rating", progress: Progress = SILENT) -> DemoResult:
    """Compare all methods and baselines on the embedded ratings or clicks in `out`, or continue an earlier call."""
    data = prepare("synthetic", out=out / "data", reuse=True, progress=progress, settings=WORLDS[target])
    folder = out / "comparison"
    results = compare(data, seeds=SEEDS, out=folder, progress=progress, settings=SHORT[target])
    known = baselines_for(target) | rankers_for(target)
    left_out = [name for name, baseline in known.items() if not baseline.is_installed()]
    return DemoResult(data, folder, results, left_out)
