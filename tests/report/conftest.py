"""Comparisons with everything that a report can show: one of ratings, one of clicks; their reports are written once."""

from pathlib import Path

import pytest

from paml.report import write_report
from report.comparison import write_comparison
from report.complete import VARIANTS, complete


@pytest.fixture(scope="session")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = complete(write_comparison(tmp_path_factory.mktemp("comparison") / "OUT", variants=VARIANTS))
    write_report(folder)
    return folder


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison") / "OUTC"
    complete(write_comparison(folder, target="click", source="taobao", variants=()))
    write_report(folder)
    return folder
