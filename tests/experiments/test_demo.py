"""The demonstration on a small version of the embedded clicks; `test_cli.py` runs it on the ratings at full size."""

import json
from pathlib import Path

import pytest

from commands import run
from paml.baselines.registry import Baseline, rankers_for
from paml.experiments import demo


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, without_pdf: None) -> None:
    monkeypatch.setitem(demo.WORLDS, "click", {"target": "click", "users": 150, "items": 40})
    monkeypatch.setitem(demo.SHORT, "click", {"epochs": 1, "ensemble_size": 1, "hidden": "8"})
    monkeypatch.setattr(demo, "SEEDS", 1)


def test_clicks_have_a_demonstration_in_a_folder_of_their_own(tmp_path: Path) -> None:
    done = run("demo", "--clicks", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "AUC, pooled over users" in done.stdout
    assert "The clicks' own noise: no predictor can have a lower NEL than 0.0" in done.stdout
    assert "report: paml-demo-clicks/comparison/report.html" in done.stdout
    page = (tmp_path / "paml-demo-clicks" / "comparison" / "report.html").read_text()
    assert "AUC and NEL, as in the paper&#x27;s Fig. 3" in page
    assert "AUCs of 0.5882 and 0.5806" in page
    results = json.loads((tmp_path / "paml-demo-clicks" / "comparison" / "results.json").read_text())
    assert set(results["pooled"]["auc"]) == set(results["table"]["auc"]) > {"reg_paml", "ridge", "logistic"}
    mixed = run("demo", "--out", "paml-demo-clicks", cwd=tmp_path)
    assert "data: was prepared with other settings (" in mixed.stderr


def test_rankers_take_part_and_are_named_if_they_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ("lightgbm", "lenskit_slim")
    installed = Baseline.is_installed
    monkeypatch.setattr(Baseline, "is_installed", lambda self: self.name not in missing and installed(self))
    done = demo.run_demo(tmp_path, "click")
    assert done.left_out == list(missing)
    rankers = set(rankers_for("click")) - set(missing)
    assert rankers <= {entry.name for entry in done.results.plan.entries}
    assert all(done.results.mean(name, "ndcg10") is not None for name in rankers)
