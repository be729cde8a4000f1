"""Figures say what the rows say, and are files that stand alone."""

import re
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from paml.analysis.results import read_results
from paml.report.figures import FIGURES, Figure, figures, groups, save_figures, style
from paml.report.figures.accuracy import calibration_curve
from paml.report.figures.behaviour import mean_curve
from paml.report.figures.embeddings import separation
from paml.report.figures.groups import kernel_density
from paml.report.figures.material import Material
from report.comparison import write_comparison
from report.complete import complete, summarise_again
from report.drawn import SVG, labels, meanings, numbers

CLICKS_ONLY = {"clicks", "calibration"}
RATINGS_ONLY = {"gamma", "failure"}  # the comparison of clicks has no variants


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_every_figure_is_there(ratings: Path, clicks: Path, suffix: str) -> None:
    drawn = {path.stem for path in (ratings / "figures").glob(f"*.{suffix}")}
    assert drawn == set(FIGURES) - CLICKS_ONLY
    drawn = {path.stem for path in (clicks / "figures").glob(f"*.{suffix}")}
    assert drawn == set(FIGURES) - RATINGS_ONLY


def test_files_are_sound_and_refer_to_themselves_only(ratings: Path, clicks: Path) -> None:
    for path in [*(ratings / "figures").glob("*.svg"), *(clicks / "figures").glob("*.svg")]:
        text = path.read_text()
        root = ET.fromstring(text)
        ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
        assert len(ids) == len(set(ids))
        assert all(key.startswith(f"{path.stem}-") for key in ids)
        referred = set(re.findall(r'(?:href="|url\()([^")]+)', text))
        assert all(target.removeprefix("#") in ids for target in referred)
        assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "script" not in text
        assert not list(root.iter(f"{SVG}image"))
    for path in (ratings / "figures").glob("*.pdf"):
        assert path.read_bytes().startswith(b"%PDF")


def test_files_need_no_variables(ratings: Path, clicks: Path) -> None:
    """A program that knows no CSS variables, and takes no colour from a page, shows every mark all the same."""
    for path in [*(ratings / "figures").glob("*.svg"), *(clicks / "figures").glob("*.svg")]:
        text = path.read_text()
        assert "var(" not in text
        assert "currentColor" not in text
        assert f"fill: {style.INK}" in text
    medians = (ratings / "figures" / "boxes.svg").read_text().partition("</style>")[2]
    assert medians.count(f"stroke: {style.PAPER}") >= len(labels(ratings))


@pytest.mark.parametrize(("scheme", "ink"), [("light", "rgb(29, 33, 38)"), ("dark", "rgb(230, 232, 234)")])
def test_files_follow_a_browsers_colour_scheme(browser: Any, ratings: Path, scheme: str, ink: str) -> None:
    shown = browser.new_page(color_scheme=scheme)
    shown.goto((ratings / "figures" / "boxes.svg").as_uri())
    assert shown.evaluate("getComputedStyle(document.querySelector('text')).fill") == ink
    medians = f"document.querySelectorAll('path[style*=\"stroke: {style.PAPER}\"]')"
    strokes = shown.evaluate(f"[...{medians}].map(path => getComputedStyle(path).stroke)")
    assert len(strokes) >= len(labels(ratings))
    assert set(strokes) == {"rgb(254, 254, 253)" if scheme == "light" else "rgb(21, 24, 27)"}
    shown.close()


def test_the_page_has_its_own_colours(ratings: Path) -> None:
    page = (ratings / "report.html").read_text()
    assert style.INK not in page.partition("<body>")[2]
    assert style.PAPER not in page
    assert "var(--paper, #fff)" in page


def test_the_same_comparison_gives_the_same_bytes(clicks: Path) -> None:
    before = {path.name: path.read_bytes() for path in (clicks / "figures").iterdir()}
    drawn = figures(clicks, read_results(clicks))
    files = {f"{name}.svg": style.standalone(figure.svg).encode() for name, figure in drawn.items()}
    assert files.items() <= before.items()
    assert {f"{name}.pdf": figure.pdf for name, figure in drawn.items()}.items() <= before.items()


def test_the_comparison_shows_the_tables_means(ratings: Path) -> None:
    results = read_results(ratings)
    marks = meanings(ratings, "comparison")
    assert len(marks) == len(results.plan.entries)
    for (name, label), text in zip(labels(ratings).items(), marks, strict=True):
        mean, low, high = numbers(text.removeprefix(label))[:1] + numbers(text.removeprefix(label))[-2:]
        assert text.startswith(f"{label}: ")
        assert mean == pytest.approx(results.mean(name), abs=5e-5)
        assert low < mean < high
    assert f">{results.mean('reg_paml'):.3f}<" in (ratings / "figures" / "comparison.svg").read_text()


@pytest.mark.parametrize("name", ["boxes", "boxes_enlarged"])
def test_boxes_show_the_users_quartiles(ratings: Path, name: str) -> None:
    rows = pl.read_parquet(ratings / "rows.parquet")
    users = rows.group_by("method", "user").agg(pl.col("mse").mean())
    marks = meanings(ratings, name)
    for (method, label), text in zip(labels(ratings).items(), marks, strict=True):
        value_U = users.filter(pl.col("method") == method)["mse"].to_numpy()
        expected = np.quantile(value_U, [0.5, 0.25, 0.75])
        assert numbers(text.removeprefix(label)) == pytest.approx(expected.tolist(), abs=5e-5)
        assert text.endswith(f"{len(value_U)} users")


@pytest.mark.usefixtures("without_pdf")
def test_an_unfinished_comparison_is_drawn_from_the_seeds_of_its_tables(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "OUT", methods=["melu", "paml"], variants=(), unfinished=(("paml", 1),))
    drawn = figures(folder, summarise_again(folder))["boxes"]
    rows = pl.read_parquet(folder / "rows.parquet").filter(pl.col("method") == "melu")
    assert set(rows["seed"]) == {0, 1}
    first = rows.filter(pl.col("seed") == 0)["mse"].median()
    assert first != rows["mse"].median()
    assert f"MeLU: median {first:.4f}" in drawn.svg


def test_marks_lie_where_their_values_are(ratings: Path) -> None:
    """A straight line leads from the values to the places of the comparison's dots."""
    root = ET.parse(ratings / "figures" / "comparison.svg").getroot()
    places = []
    for group in root.iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None:
            use = next(group.iter(f"{SVG}use"))
            places.append((numbers(str(title.text).partition(": ")[2])[0], float(use.attrib["x"])))
    value_K, x_K = np.array(places).T
    assert len(value_K) == len(labels(ratings))
    slope, start = np.polyfit(value_K, x_K, 1)
    assert slope > 0
    assert np.abs(slope * value_K + start - x_K).max() < 0.05


def test_violins_and_boxes_of_both_groups(ratings: Path) -> None:
    rows = pl.read_parquet(ratings / "rows.parquet")
    users = rows.group_by("method", "user", "group").agg(pl.col("mse").mean())
    for name in ("violins", "violins_enlarged"):
        assert len(meanings(ratings, name)) == 2 * 6  # the best baseline, three methods, two variants
    for name in ("group_boxes", "group_boxes_enlarged"):
        marks = meanings(ratings, name)
        assert len(marks) == 2 * 4  # the best baseline and three methods
        for group in ("major", "minor"):
            part = users.filter((pl.col("method") == "paml") & (pl.col("group") == group))["mse"].to_numpy()
            text = next(mark for mark in marks if mark.startswith(f"PAML, {group} users: "))
            assert numbers(text) == pytest.approx(np.quantile(part, [0.5, 0.25, 0.75]).tolist(), abs=5e-5)
            assert text.endswith(f"{len(part)} users")
    material = Material.read(ratings, read_results(ratings))
    with style.drawing():
        for whole, enlarged in (
            (groups.violins, groups.violins_enlarged),
            (groups.group_boxes, groups.group_boxes_enlarged),
        ):
            canvases = [whole(material), enlarged(material)]
            ends = [canvas.axes[0].get_xlim()[1] for canvas in canvases if canvas is not None]
            assert ends[0] > ends[1]
        assert ends[0] >= users.filter(pl.col("method") == "paml")["mse"].max()


def test_captions_name_the_papers_figures(ratings: Path) -> None:
    material = Material.read(ratings, read_results(ratings))
    captions = {name: kind.caption for name, kind in FIGURES.items()}
    text = {name: found if isinstance(found, str) else found(material) for name, found in captions.items()}
    assert not any("The value is 0" in caption for caption in text.values())
    assert "Fig. 9" in text["violins"]
    assert "Fig. 9" in text["violins_enlarged"]
    assert "Fig. 10" in text["group_boxes"]
    assert "Fig. 10" in text["group_boxes_enlarged"]
    assert "Figs. 4 and 7" in text["rates"]
    assert "Fig. 7" in text["rates_common"]
    assert "Figs. 5" in text["boxes"]
    assert "Tab. 5" in text["gamma"]


def test_every_embedded_user_is_a_dot(ratings: Path) -> None:
    text = (ratings / "figures" / "embeddings.svg").read_text()
    marks = meanings(ratings, "embeddings")
    assert sum(int(re.findall(r"\d+ m", part)[0][:-2]) for part in marks) == 3 * 60
    paths = re.findall(r"</title>\s*<path d=\"([^\"]*)\"", text)
    assert sum(path.count("M") for path in paths) == 3 * 60


def test_separation_is_measured_where_the_embeddings_are() -> None:
    rng = np.random.default_rng(0)
    minor_U = np.arange(200) < 80
    noise_UH = rng.normal(size=(200, 8))
    apart = separation(noise_UH + 6 * minor_U[:, None], minor_U)
    assert apart is not None
    assert apart.auc > 0.99
    assert apart.silhouette > 0.5
    mixed = separation(noise_UH, minor_U)
    assert mixed is not None
    assert abs(mixed.auc - 0.5) < 0.12  # users that the classifier was not fitted to
    assert abs(mixed.silhouette) < 0.05
    assert separation(noise_UH, minor_U) == mixed
    assert separation(noise_UH, np.arange(200) < 9) is None


def test_embeddings_come_with_their_separation(ratings: Path) -> None:
    drawn = figures(ratings, read_results(ratings))["embeddings"]
    assert len(re.findall(r">AUC 0\.\d\d, silhouette −?0\.\d\d</text>", drawn.svg)) == 3
    assert "0.5 by chance" in drawn.caption
    assert "tautology" in drawn.caption
    assert drawn.caption.endswith("2 variants are not shown.")


def test_a_mean_over_seeds_does_not_jump_where_one_stops() -> None:
    """Two flat seeds at 1 and 2: their mean is 1.5 in every epoch, however long either trains."""
    long, short = ([(seed, epoch, float(seed)) for epoch in range(1, last + 1)] for seed, last in ((1, 9), (2, 4)))
    history = pl.DataFrame([*long, *short], schema=["seed", "epoch", "validation"], orient="row")
    mean = mean_curve(history)
    assert mean["epoch"].to_list() == list(range(1, 10))
    assert mean["validation"].to_list() == [1.5] * 9
    assert len(mean_curve(history.clear())) == 0


@pytest.mark.usefixtures("without_pdf")
def test_the_learning_curve_holds_a_seeds_last_value(ratings: Path, tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "OUT", methods=["paml"], variants=())
    seeds = {0: [1.2, 1.0, 0.8, 0.7], 1: [3.0, 2.0]}
    rows = [("paml", seed, k + 1, value) for seed, values in seeds.items() for k, value in enumerate(values)]
    history = pl.DataFrame(rows, schema=["method", "seed", "epoch", "validation"], orient="row")
    history.write_parquet(folder / "history.parquet")
    drawn = figures(folder, summarise_again(folder))["learning"]
    assert "<title>PAML: 4 epochs, best 1.3500</title>" in drawn.svg  # (0.7 + 2) / 2, and not 0.7
    assert "last value" in drawn.caption


def test_accuracy_beside_cost(ratings: Path) -> None:
    """A line per entry, no leaders; filled dots are those that no other entry beats in both."""
    results = read_results(ratings)
    root = ET.parse(ratings / "figures" / "cost.svg").getroot()
    known = [name for name in results.plan.names() if results.cost[name].adapt_ms is not None]
    places = []
    for group in root.iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None:
            use = next(group.iter(f"{SVG}use"))
            places.append((str(title.text), float(use.attrib["y"]), style.PAPER not in use.attrib["style"]))
    assert len(places) == 2 * len(known)
    assert places[: len(known)] == places[len(known) :]  # the same lines in both panels
    cost = {name: (results.mean(name), results.cost[name].adapt_ms) for name in known}
    for name, (text, _, filled) in zip(known, places, strict=False):
        mean, time = cost[name]
        beaten = any(other < mean and faster < time for other, faster in cost.values())
        assert text.startswith(f"{labels(ratings)[name]}: {time:.4g} ms, {mean:.4f}")
        assert filled is not beaten
    assert len({filled for *_, filled in places}) == 2


def test_curves_show_the_results(ratings: Path) -> None:
    results = read_results(ratings)
    marks = " ".join(meanings(ratings, "shots"))
    for mean in results.shots["mse"].means["reg_paml"]:
        assert f"{mean:.4f}" in marks
    assert "training mean" not in marks  # the best baseline alone
    cold = " ".join(meanings(ratings, "items"))
    assert f"REG-PAML, new items: {results.items.cold['reg_paml']:.4f}" in cold
    assert len(meanings(ratings, "activity")) == 6
    assert len(meanings(ratings, "learning")) == 5
    expected = {
        group: [results.summary(name, group=group).mean for name in ("reg_paml", "reg_paml gamma=0.01")]
        for group in ("all", "major", "minor")
    }
    assert meanings(ratings, "gamma") == [
        f"{group} users; 0.001: {usual:.4f}, 0.01: {more:.4f}" for group, (usual, more) in expected.items()
    ]


@pytest.mark.usefixtures("without_pdf")
def test_the_best_of_either_kind_by_profile(ratings: Path, tmp_path: Path) -> None:
    found = read_results(ratings).by_group
    assert found is not None
    expected = {
        f"{label}, age {value}: {line[name].mean:.4f}, {line[name].users} users"
        for value, line in found.values.items()
        for name, label in (("bias", "item + user bias"), ("reg_paml", "REG-PAML"))
    }
    assert len(expected) == 2 * 3
    assert set(meanings(ratings, "by_group")) == expected
    folder = write_comparison(tmp_path / "OUT", variants=(), methods=["paml"])
    rows = pl.read_parquet(folder / "rows.parquet").with_columns(pl.col("user").alias("user.age"))
    rows.write_parquet(folder / "rows.parquet")
    many = figures(folder, summarise_again(folder))["by_group"]
    assert many.caption.endswith("by the users' age. The 12 values with the most users, of 60.")
    assert many.svg.count("PAML, age") == 12
    without = write_comparison(tmp_path / "WITHOUT", variants=(), methods=["paml"], group_by=None)
    assert "by_group" not in figures(without, summarise_again(without))


def test_clicks_show_the_papers_figure(clicks: Path) -> None:
    results = read_results(clicks)
    marks = meanings(clicks, "clicks")
    for name, label in labels(clicks).items():
        auc, nel, pooled = results.summary(name, "auc"), results.summary(name, "nel"), results.pooled["auc"][name]
        assert f"{label}: AUC per user {auc.mean:.4f} ± {auc.deviation:.4f}" in marks
        assert f"{label}: AUC, pooled over users {pooled.mean:.4f} ± {pooled.deviation:.4f}" in marks
        assert f"{label}: NEL {nel.mean:.4f} ± {nel.deviation:.4f}" in marks
        assert any(mark.startswith(f"{label}: median ") for mark in marks)


def test_calibration_compares_predicted_and_observed_shares() -> None:
    rng = np.random.default_rng(1)
    p_N = rng.uniform(0.01, 0.5, 50_000)
    label_N = (rng.random(len(p_N)) < p_N).astype(int)
    predicted_B, observed_B = calibration_curve(p_N, label_N)
    assert len(predicted_B) == 10
    assert predicted_B.mean() == pytest.approx(p_N.mean(), abs=1e-9)
    assert np.abs(predicted_B - observed_B).max() < 0.03


def test_densities_integrate_to_one() -> None:
    x_G = np.linspace(-6, 6, 400)
    for value_U in (np.random.default_rng(0).normal(size=900), np.array([0.0, 0.0, 0.0, 1.0])):
        assert np.trapezoid(kernel_density(value_U, x_G), x_G) == pytest.approx(1, abs=0.01)


def test_long_names_keep_their_ends() -> None:
    assert style.shortened("REG-PAML gamma=0.01") == "REG-PAML gamma=0.01"
    assert style.shortened("gradient boosting (LightGBM)") == "gradient boosting"
    assert style.shortened("matrix factorisation, folded in (LensKit)") == "matrix fa…folded in"
    assert style.shortened("matrix factorisation, retrained (LensKit)") == "matrix fa…retrained"


def test_names_at_curves_do_not_overlap() -> None:
    for wanted in ([0.5] * 6, [0.0, 0.01, 0.02, 0.99, 1.0], [-3.0, 0.5, 7.0], [0.2]):
        placed_K = style.spread_out(np.array(wanted), 0.1)
        assert (np.diff(placed_K) > 0.0999).all()
        assert placed_K.min() > -1e-9
        assert placed_K.max() < 1 + 1e-9
    assert len(style.spread_out(np.zeros(0), 0.1)) == 0
    assert (np.diff(style.spread_out(np.full(30, 0.5), 0.1)) > 0.09).all()  # more than there is room for


def test_colours_stand_out_and_stay(ratings: Path) -> None:
    material = Material.read(ratings, read_results(ratings))
    colours = {entry.name: entry.colour for entry in material.entries}
    assert colours["reg_paml"] == style.METHOD_COLOURS["reg_paml"]
    learned = [entry.colour for entry in material.entries if entry.learned]
    assert len(set(learned)) == len(learned)
    for colour in [*style.METHOD_COLOURS.values(), *style.MORE_COLOURS, *style.GREYS]:
        for page in ("#ffffff", "#15181b"):
            assert contrast(colour, page) >= 3


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines measure it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_figures_with_nothing_to_draw_are_skipped(tmp_path: Path) -> None:
    everything = tuple((name, seed) for name in ("bias", "paml") for seed in (0, 1))
    folder = write_comparison(
        tmp_path / "OUT", methods=["paml"], variants=(), baselines=["bias"], unfinished=everything
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert figures(folder, summarise_again(folder)) == {}


def test_letters_that_the_font_lacks_are_text_and_no_warning(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path / "OUT", methods=["paml"], variants=(), baselines=["bias"])
    rows = pl.read_parquet(folder / "rows.parquet").with_columns(pl.col("user.age").replace("18", "東京\n(都)"))
    rows.write_parquet(folder / "rows.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "東京 (都)" in figures(folder, summarise_again(folder))["by_group"].svg


@pytest.mark.usefixtures("without_pdf")
@pytest.mark.parametrize("users", [1, 3])
def test_hardly_any_users(tmp_path: Path, users: int) -> None:
    folder = write_comparison(tmp_path / "OUT", users=users, seeds=(0,), variants=(), methods=["paml"])
    drawn = figures(complete(folder), read_results(folder))
    assert "comparison" in drawn
    assert "embeddings" not in drawn


@pytest.mark.usefixtures("without_pdf")
def test_values_that_do_not_vary(tmp_path: Path) -> None:
    folder = complete(write_comparison(tmp_path / "OUT", methods=["paml"], variants=(), baselines=["bias"]))
    rows = pl.read_parquet(folder / "rows.parquet").with_columns(mse=pl.lit(1.0), rate=pl.lit(0.01))
    rows.write_parquet(folder / "rows.parquet")
    embedded = pl.read_parquet(folder / "embeddings.parquet")
    same = pl.Series([[1.0, 2.0]] * len(embedded), dtype=pl.List(pl.Float32))
    embedded.with_columns(vector=same).write_parquet(folder / "embeddings.parquet")
    drawn = figures(folder, summarise_again(folder))
    assert {"comparison", "boxes"} <= set(drawn)
    assert not {"rates", "embeddings", "violins"} & set(drawn)


@pytest.mark.usefixtures("without_pdf")
@pytest.mark.parametrize(
    ("zeros", "enlarged"), [(0.5, {"boxes", "group_boxes", "violins"}), (0.8, {"violins"}), (0.98, set())]
)
def test_where_most_users_have_0_empty_figures_are_left_out(tmp_path: Path, zeros: float, enlarged: set[str]) -> None:
    """As nDCG@10 of a large catalogue: from three quarters of zeros on, all whiskers have no length."""
    folder = write_comparison(tmp_path / "OUT", methods=["paml"], variants=(), baselines=["bias"], users=600)
    place = pl.col("user").str.tail(4).cast(pl.Int64) * 0.618034 % 1
    rows = pl.read_parquet(folder / "rows.parquet").with_columns(mse=pl.when(place >= zeros).then("mse").otherwise(0.0))
    rows.write_parquet(folder / "rows.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = figures(folder, summarise_again(folder))
    whole = {"boxes", "group_boxes", "violins"}
    assert {name for name in whole if f"{name}_enlarged" in drawn} == enlarged
    assert all(f"The value is 0 for {zeros:.0%}".replace("%", " %") in drawn[name].caption for name in whole)
    medians = drawn["boxes"].svg.count("stroke: var(--paper, #fff)")
    assert medians == (2 if zeros < 0.75 else 0)  # a box without width has a median in ink


def test_figures_that_are_gone_are_removed(tmp_path: Path) -> None:
    (tmp_path / "shots.svg").write_text("old")
    save_figures({"cost": Figure("title", "caption", "<svg/>", b"%PDF")}, tmp_path)
    assert not (tmp_path / "shots.svg").exists()
    assert (tmp_path / "cost.pdf").exists()
    assert not list(tmp_path.glob(".*"))
