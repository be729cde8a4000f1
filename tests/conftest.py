"""A small synthetic world, prepared once, and small tables in exactly the format that users have.

Two layers: `make test` runs what is fast, `make test-slow` what is marked as slow. Tests that need a browser or
PostgreSQL are slow by themselves.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, settings

import paml
from paml.testing import small_world
from smalltables import write_tables
from waiting import PATIENCE

RunOf = Callable[[str, str], paml.Run]

SLOW_FIXTURES = {"browser", "postgres"}

torch.set_num_threads(1)  # tensors are small in tests: a second thread only costs time
settings.register_profile("paml", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine, too
settings.load_profile("paml")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def world() -> paml.Dataset:
    return small_world("rating")


@pytest.fixture(scope="session")
def click_world() -> paml.Dataset:
    return small_world("click")


@pytest.fixture(scope="session")
def choice_world(tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    """Choices of two strengths: the chosen items of the embedded world, those of some users more than once."""
    folder = tmp_path_factory.mktemp("choices")
    once = paml.prepare("synthetic", out=folder / "once", users=400, items=80, target="choice", median_rows=40)
    users, items = once.users().collect(), once.items().collect()
    rows = once.interactions().collect()
    rows = rows.with_columns(user=users["user"].gather(rows["user"]), item=items["item"].gather(rows["item"]))
    again = rows.filter(rows["item"].cast(int) % 3 == 0)
    profile = dict.fromkeys(("gender", "age", "occupation"), "categorical")
    content = {"title": "identifier", "genre": "multi", "director": "categorical", "year": "numeric"}
    schema = {
        "target": {"kind": "choice"},
        "interactions": {"user": "user", "item": "item", "time": "time"},
        "users": {"key": "user", "fields": profile},
        "items": {"key": "item", "fields": content},
    }
    log = pl.concat([rows, again]).select("user", "item", "time")
    return paml.prepare(interactions=log, users=users, items=items, schema=schema, out=folder / "data", cold_share=1)


@pytest.fixture(scope="session")
def run_of(
    tmp_path_factory: pytest.TempPathFactory,
    world: paml.Dataset,
    click_world: paml.Dataset,
    request: pytest.FixtureRequest,
) -> RunOf:
    """Runs by target and method, each trained once."""
    runs: dict[tuple[str, str], paml.Run] = {}

    def run(target: str, method: str) -> paml.Run:
        if (target, method) not in runs:
            out = tmp_path_factory.mktemp("runs") / f"{target}-{method}"
            if target == "choice":
                data = request.getfixturevalue("choice_world")
            else:
                data = {"rating": world, "click": click_world}[target]
            runs[target, method] = paml.train(data, method, out=out, epochs=2, ensemble_size=2)
        return runs[target, method]

    return run


@pytest.fixture(scope="session")
def run(run_of: RunOf) -> paml.Run:
    return run_of("rating", "ridge")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The Chromium of this machine."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=1000 * PATIENCE)
        yield started
        started.close()


@pytest.fixture
def without_pdf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures as SVG alone: embedding fonts into PDF takes most of a report's time."""
    monkeypatch.setattr("paml.report.figures.style.pdf_bytes", lambda *_: b"%PDF")


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return write_tables(tmp_path / "tables")


@pytest.fixture
def edit(tables: Path) -> Callable[[str, str, str], Path]:
    """Replace text in one of the table files, once; returns the folder."""

    def apply(file: str, old: str, new: str) -> Path:
        path = tables / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        return tables

    return apply
