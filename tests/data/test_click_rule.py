"""What the minimum counts for clicks: rows, or clicks as in the paper, which lets query labels choose the users."""

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import paml
from commands import run
from data.sources.test_taobao import write_taobao

USERS, ROWS, RATE = 8000, 10, 0.145
QUERY = 2  # of ten rows, by the support share of 80 %


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clicks that nothing predicts: every row is clicked with the same probability."""
    folder = tmp_path_factory.mktemp("noise")
    rng = np.random.default_rng(0)
    clicks = {
        "user": np.repeat(np.arange(USERS), ROWS),
        "item": np.tile(np.arange(ROWS), USERS),
        "click": (rng.random(USERS * ROWS) < RATE).astype(int),
    }
    pl.DataFrame(clicks).write_csv(folder / "clicks.csv")
    schema = '[target]\nkind = "click"\n[interactions]\nfile = "clicks.csv"\nuser = "user"\nitem = "item"\n'
    (folder / "schema.toml").write_text(schema + 'target = "click"\n')
    return folder


def with_a_query_click(data: paml.Dataset, support_clicks: int) -> tuple[float, int]:
    """The share of users with a click among the query rows, of those with this many among the support rows."""
    clicked = pl.col("target").filter
    users = data.interactions().group_by("user").agg(known=clicked(~pl.col("query")).sum(), new=clicked("query").sum())
    found = users.filter(pl.col("known") == support_clicks).collect()
    return float((found["new"] > 0).mean()), len(found)  # type: ignore[arg-type]


def test_own_clicks_are_chosen_without_looking_at_query_labels(noise: Path, tmp_path: Path) -> None:
    data = paml.prepare("tables", noise, tmp_path / "data", cold_share=1)
    assert data.manifest.users == USERS
    expected = 1 - (1 - RATE) ** QUERY  # 0.27
    for known in (0, 1, 2):
        share, users = with_a_query_click(data, known)
        assert share == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / users))
    assert not any("min_counts" in note for note in data.manifest.notes)
    assert data.manifest.rules[-1].rule == "at least 2 interactions"


@pytest.mark.parametrize("least", [2, 3])
def test_the_papers_rule_makes_query_clicks_certain_and_says_so(noise: Path, tmp_path: Path, least: int) -> None:
    data = paml.prepare("tables", noise, tmp_path / "data", cold_share=1, min_counts="clicks", min_interactions=least)
    assert with_a_query_click(data, least - 1)[0] == 1.0
    assert with_a_query_click(data, least)[0] < 0.35
    assert data.manifest.notes[-1].startswith("warning: min_counts=clicks, the paper's rule, chooses users by")
    assert data.manifest.rules[-1].rule == f"at least {least} clicks"


def test_only_the_papers_own_kind_of_data_has_the_papers_rule(tmp_path: Path) -> None:
    taobao = write_taobao(tmp_path / "taobao")
    paper = paml.prepare("taobao", taobao, tmp_path / "paper", cold_share=1)
    assert paper.manifest.protocol.min_counts == "clicks"
    own = paml.prepare("taobao", taobao, tmp_path / "own", cold_share=1, min_counts="rows")
    assert own.manifest.protocol.min_counts == "rows"
    assert own.manifest.notes == ()
    world = paml.prepare("synthetic", out=tmp_path / "world", users=60, target="click")
    assert world.manifest.protocol.min_counts == "rows"


def test_the_warning_is_printed(noise: Path, tmp_path: Path) -> None:
    done = run("data", "prepare", "tables", "min_counts=clicks", "--from", noise, "--out", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "warning: min_counts=clicks" in done.stderr


def test_ratings_have_no_clicks_to_count(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(paml.SettingsError, match="min_counts is 'clicks', but the targets are ratings"):
        paml.prepare("tables", tables, tmp_path / "data", min_counts="clicks")


def test_ratings_keep_the_fingerprint_that_they_had_without_the_setting(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=400, items=80)
    assert data.fingerprint == "d85b17d4e95bdd9d1dfe619a224b9b8007fb348d274eef5d6362f558afc64f4e"
    older = Path(shutil.copytree(data.path, tmp_path / "older")) / "manifest.json"
    older.write_text(older.read_text().replace('  "min_counts": "rows",\n', ""))
    assert '"min_counts"' not in older.read_text()
    assert paml.open_data(older.parent).fingerprint == data.fingerprint
