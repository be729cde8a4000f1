"""The demonstration: the embedded data set, and what simple predictors reach on it."""

from dataclasses import dataclass
from pathlib import Path

from paml.baselines import SplitRows, training_mean, tuned_bias
from paml.data.prepare import prepare
from paml.data.prepared import PreparedData
from paml.data.protocol import Protocol
from paml.data.sources.synthetic import SyntheticSettings
from paml.errors import FormatError
from paml.progress import SILENT, Progress


@dataclass(frozen=True)
class DemoResult:
    """The prepared data and the mean squared error on test users, by predictor."""

    data: PreparedData
    mse: dict[str, float]


def run_demo(out: Path, progress: Progress = SILENT) -> DemoResult:
    """Prepare the embedded ratings in `out/data` (or reuse them) and score two predictors on the test users."""
    folder = out / "data"
    data = PreparedData.open(folder) if folder.exists() else prepare("synthetic", out=folder, progress=progress)
    expected = SyntheticSettings().model_dump(mode="json")
    if data.manifest.source.settings != expected or data.manifest.protocol != Protocol():
        remedy = "choose another --out, or remove it"
        raise FormatError("holds another data set than the demonstration's", where=folder, remedy=remedy)
    test = SplitRows.of(data, "test")
    with progress.step("scoring baselines"):
        mse = {
            "training mean": float(test.query_error(training_mean(data, "test")).mean()),
            "item + user bias, folded in": float(test.query_error(tuned_bias(data).predict(test)).mean()),
        }
    return DemoResult(data, mse)
