"""Figures of rates: who is counted, on which axis, under which name; and that no variant is left out silently."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from paml.analysis.plan import RateFacts
from paml.analysis.results import read_results
from paml.report.figures import figures, style
from paml.report.figures.groups import kernel_density
from paml.report.figures.material import Material
from paml.report.figures.rates import bounded_density, rates, rates_common
from report.comparison import TRUTH, write_comparison
from report.complete import complete, summarise_again
from report.drawn import labels, meanings


def test_no_rate_is_drawn_beyond_its_bound() -> None:
    rate_N = 1 - np.random.default_rng(0).exponential(0.05, 600).clip(max=1)
    x_G = np.linspace(0, 1.2, 1201)
    density_G = bounded_density(rate_N, x_G, 1.0)
    assert not density_G[x_G > 1].any()
    assert np.trapezoid(density_G, x_G) == pytest.approx(1, abs=0.02)
    assert kernel_density(rate_N, x_G)[x_G > 1].any()  # what smoothing alone would show


def test_rates_show_both_groups_and_count_users_once(ratings: Path) -> None:
    rows = pl.read_parquet(ratings / "rows.parquet")
    marks = meanings(ratings, "rates")
    assert len(marks) == 2 * 4  # MeLU has one rate for all
    minor = rows.filter((pl.col("method") == "paml") & (pl.col("group") == "minor"))
    assert len(minor) == 2 * minor["user"].n_unique()  # two seeds
    text = next(mark for mark in marks if mark.startswith("PAML, minor users: "))
    assert f"mean learning rate {minor['rate'].mean():.4g} ± " in text
    assert text.endswith(f", {minor['user'].n_unique()} users in 2 seeds")


def test_all_users_on_a_common_axis(ratings: Path) -> None:
    rows = pl.read_parquet(ratings / "rows.parquet")
    marks = [mark for mark in meanings(ratings, "rates_common") if "at most" not in mark]
    assert len(marks) == 3 * 4  # the groups, and everyone; bounds are marked, too
    text = (ratings / "figures" / "rates_common.svg").read_text()
    for name, label in (("paml", "PAML"), ("reg_paml", "REG-PAML")):
        rate_N = rows.filter(pl.col("method") == name)["rate"].to_numpy()
        assert any(mark.startswith(f"{label}, all users: mean learning rate {rate_N.mean():.4g} ±") for mark in marks)
        assert f">all {rate_N.mean():.3f} ± {rate_N.std():.3f}<" in text
    ticks = re.findall(r">([\d.]+)</text>", text)
    assert len(ticks) == len(set(ticks))  # one axis for all panels
    assert "0" in ticks


@pytest.mark.parametrize("span", [1e-2, 5e-5, 1e-6])
def test_ticks_of_a_narrow_axis_differ(ratings: Path, span: float) -> None:
    material = Material.read(ratings, read_results(ratings))
    near = 0.1 - span * (1 - pl.col("rate") / pl.col("rate").max())
    narrow = Material(material.results, {"rows": material.frame("rows").with_columns(rate=near)})
    with style.drawing():
        canvas = rates(narrow)
        assert canvas is not None
        for axes in canvas.axes:
            low, high = axes.get_xlim()
            place_T = [place for place in axes.get_xticks() if low <= place <= high]
            shown = [axes.xaxis.get_major_formatter()(place) for place in place_T]
            assert [float(text) for text in shown] == pytest.approx(place_T, abs=span / 1000)
            assert len(set(shown)) == len(shown) >= 2


def with_rates(folder: Path, change: pl.Expr) -> Material:
    """The comparison with other rates."""
    path = folder / "rows.parquet"
    pl.read_parquet(path).with_columns(rate=change).write_parquet(path)
    return Material.read(folder, summarise_again(folder))


@pytest.mark.usefixtures("without_pdf")
def test_every_variant_with_personal_rates_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [f"reg_paml gamma={k}e-4" for k in range(2, 14)]
    monkeypatch.setattr("report.comparison.TRUTH", TRUTH | dict.fromkeys(variants, 0.0))
    folder = write_comparison(tmp_path / "OUT", methods=["paml", "reg_paml"], variants=variants, users=20)
    with_rates(folder, pl.col("support_rows") / 1000)
    drawn = figures(folder, read_results(complete(folder)))
    for variant in variants:
        label = labels(folder)[variant]
        assert f"{label}, minor users" in drawn["violins"].svg
        assert f"{label}, minor users" in drawn["violins_enlarged"].svg
    named = {name: name.removeprefix("reg_paml ") in drawn["shots"].svg for name in variants}
    hidden = len(named) - sum(named.values())
    assert hidden == 2 + 12 - 8
    assert drawn["shots"].caption.endswith(f" {hidden} of 14 methods and variants are not shown.")
    few = figures(folder, summarise_again(write_comparison(tmp_path / "FEW", variants=())))
    assert "not shown" not in few["shots"].caption


@pytest.mark.usefixtures("without_pdf")
def test_a_prior_variance_is_not_called_a_learning_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("report.comparison.TRUTH", TRUTH | {"ridge": -0.1})
    folder = write_comparison(tmp_path / "OUT", methods=["paml", "ridge"], variants=())
    with_rates(folder, pl.col("support_rows") / 1000)
    drawn = figures(folder, read_results(folder))
    for name in ("rates", "rates_common"):
        svg = drawn[name].svg
        assert "closed-form ridge, minor users: mean prior variance" in svg
        assert "PAML, minor users: mean learning rate" in svg
        assert ">a user's learning rate</text>" in svg
        assert ">a user's prior variance</text>" in svg


def test_a_bound_is_marked_where_it_is_known(ratings: Path) -> None:
    material = Material.read(ratings, read_results(ratings))
    entries = material.results.plan.entries
    known = [
        line.model_copy(update={"rate": RateFacts(label="learning rate", bound=0.2)}) if line.method == "paml" else line
        for line in entries
    ]
    chosen = replace_plan(material, entries=tuple(known))
    bounds = {entry.name: entry.rate_bound for entry in chosen.entries}
    assert (bounds["paml"], bounds["melu"]) == (0.2, None)
    with style.drawing():
        canvas = rates_common(chosen)
    assert canvas is not None
    assert "PAML: at most 0.2" in style.svg_text(canvas, "rates_common", "title")


def replace_plan(material: Material, **changes: object) -> Material:
    plan = material.results.plan.model_copy(update=changes)
    return Material(material.results.model_copy(update={"plan": plan}), material.frames)


@pytest.mark.usefixtures("without_pdf")
def test_the_failure_case_is_the_papers_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = {"at_paml": 0.0, "at_paml outer_rate=5e-4": 0.9}
    monkeypatch.setattr("report.comparison.TRUTH", TRUTH | new)
    variants = ["reg_paml outer_rate=5e-4", "at_paml outer_rate=5e-4"]
    folder = write_comparison(tmp_path / "OUT", methods=["reg_paml", "at_paml"], variants=variants)
    with_rates(folder, pl.col("support_rows") / 1000)
    results = read_results(folder)
    drawn = figures(folder, results)["failure"]
    assert re.findall(r"<title>(AT-PAML[^,]*), all users", drawn.svg) == ["AT-PAML", "AT-PAML outer_rate=5e-4"]
    assert "<title>REG-PAML" not in drawn.svg
    means = [results.summary("at_paml outer_rate=5e-4", group=group).mean for group in ("all", "major", "minor")]
    assert " / ".join(f"{mean:.3f}" for mean in means) in drawn.caption
    assert "Fig. 8" in drawn.caption
    assert drawn.caption.endswith("; the paper's failure 2.127 / 1.477 / 3.148.")
