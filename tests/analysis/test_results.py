"""Results and verdict of comparisons made by hand, where the truth is known."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from paml.analysis import comparisons as statistics, fairness
from paml.analysis.fairness import GroupGap
from paml.analysis.plan import read_plan
from paml.analysis.results import Best, ProfileMean, Results, read_failures, read_results, write_results
from paml.analysis.sentences import judgement, sureness
from paml.analysis.summarise import summarise_comparison
from paml.analysis.verdict import costs, verdict
from paml.errors import FormatError
from paml.report.list_tables import shot_tests
from paml.report.paired_tables import paired, paired_lists
from report.comparison import (
    BASELINES,
    METHODS,
    ONLY_PREDICTS,
    QUICK,
    REFERENCE,
    SHOTS,
    VARIANTS,
    summarised,
    write_comparison,
)

ENTRIES = [*BASELINES["rating"], REFERENCE, *METHODS, *VARIANTS]
Make = Callable[..., Results]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def summarise(**wishes: Any) -> Results:
        found = summarised(tmp_path / "out", **wishes)
        assert Results.model_validate_json(found.model_dump_json()) == found
        return found

    return summarise


def text_of(results: Results) -> str:
    said = " ".join([*results.verdict, *costs(results)])
    assert "nan" not in said.lower().split()
    assert "None" not in said
    return said


def test_values_are_those_of_the_statistics(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path, undefined=0.1)
    found = summarise_comparison(folder, resamples=QUICK)
    rows = pl.read_parquet(folder / "rows.parquet")
    assert found.plan.names() == ENTRIES
    kinds = ["baseline"] * 3 + ["reference"] + ["method"] * 3 + ["variant"] * 2
    assert [entry.kind for entry in found.plan.entries] == kinds
    assert found.plan.entries[-2].label == "REG-PAML gamma=0.01"
    assert found.missing == ()
    assert found.best == Best(baseline="bias", method="reg_paml")
    for metric in found.plan.metrics:
        scored = rows if metric.about == "rows" else rows.filter(pl.col("method") != ONLY_PREDICTS[0])
        expected = statistics.over_seeds(scored, metric.name)
        assert {name: line for name, line in found.table[metric.name].items() if name in expected} == expected
    means = rows.group_by("method").agg(pl.col("mse").filter(pl.col("mse").is_finite()).mean())
    assert means.filter(pl.col("method").is_in(BASELINES["rating"])).sort("mse")["method"][0] == "bias"
    family = rows.filter(pl.col("method").is_in(["bias", *METHODS, *VARIANTS]))
    for metric in found.plan.about("rows", "list"):
        paired = statistics.paired_table(family, "bias", metric.name, resamples=QUICK)
        assert found.paired[metric.name] == tuple(paired)
        stars = {
            name: statistics.improvement(rows, name, "melu", metric.name, metric.better)
            for name in ("paml", "reg_paml", *VARIANTS)
        }
        assert found.improvements[metric.name] == stars
    for name in ENTRIES:
        groups = found.groups[name]
        assert groups.test == statistics.groups_test(rows, name, "mse")
        assert groups.gap == fairness.gap(rows, name, "mse", resamples=QUICK)
        if name in (*METHODS, *VARIANTS):
            against = fairness.gap_difference(rows, name, "bias", "mse", resamples=QUICK)
            assert groups.gap_against_baseline == against
        else:
            assert groups.gap_against_baseline is None
    assert found.loses_to["reg_paml"] == ()
    assert found.loses_to["reg_paml gamma=1e-05"] == ("bias", "item_mean")


def test_breakdowns(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path)
    found = summarise_comparison(folder, resamples=QUICK)
    rows, scenarios = (pl.read_parquet(folder / f"{name}.parquet") for name in ("rows", "scenarios"))
    own = rows.filter(pl.col("method") == "paml")
    bins = found.by_activity.bins
    assert len(bins) == 4
    assert sum(part.users for part in bins) == 60
    for part in bins:
        low, high = map(int, part.label.split("-"))
        within = own.filter(pl.col("support_rows").is_between(low, high))
        assert within["user"].n_unique() == part.users
        assert part.means["paml"] == pytest.approx(within["mse"].mean())
    assert found.by_group is not None
    assert found.by_group.field == "age"
    by_age = own.filter(pl.col("user.age") == "25")
    assert found.by_group.values["25"]["paml"].mean == pytest.approx(by_age["mse"].mean())
    assert found.by_group.values["25"]["paml"].users == 20
    assert list(found.shots["mse"].values) == SHOTS
    three = scenarios.filter(pl.col("method") == "paml", pl.col("scenario") == "shots", pl.col("value") == "3")
    assert found.shots["mse"].means["paml"][2] == pytest.approx(three["mse"].mean())
    assert found.items.cold_users == 15
    assert found.items.cold["bias"] > found.items.warm["bias"]
    assert found.cost["paml"].fit_seconds == 40.5
    assert found.cost["bias"].users_per_second is None
    assert found.cost[REFERENCE].refit_seconds == 3.0


def test_users_without_a_value_are_a_group(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path, undefined=0.5)
    rows = pl.read_parquet(folder / "rows.parquet")
    age = pl.when(pl.col("user.age") != "18").then(pl.col("user.age"))
    rows = rows.with_columns(
        age.alias("user.age"), mse=pl.when(pl.col("ndcg3").is_not_nan()).then("mse").otherwise(float("nan"))
    )
    rows.write_parquet(folder / "rows.parquet")
    by_age = summarise_comparison(folder, resamples=QUICK).by_group
    assert by_age is not None
    assert list(by_age.values) == ["25", "32", "unknown"]
    unknown = statistics.over_seeds(rows.filter(pl.col("user.age").is_null()), "mse")
    for name, found in by_age.values["unknown"].items():
        assert found == ProfileMean(mean=found.mean, users=20)
        assert found.mean == pytest.approx(unknown[name]["all"].mean)


def test_users_with_the_same_activity_share_a_bin(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path)
    rows = pl.read_parquet(folder / "rows.parquet")
    rows.with_columns(support_rows=pl.lit(1, pl.Int64)).write_parquet(folder / "rows.parquet")
    bins = summarise_comparison(folder, resamples=QUICK).by_activity.bins
    assert [(part.label, part.users) for part in bins] == [("1", 60)]


def test_a_planted_effect_is_found(make: Make) -> None:
    found = make()
    said = text_of(found)
    assert said.startswith("REG-PAML is best: MSE ")
    assert "lower than the best baseline, item + user bias" in said
    assert "p < 0.001 after Holm's correction for 5 comparisons, both seeds agree" in said
    assert "No method differs" not in said
    assert "With REG-PAML, minor users (20 of 60 users) fare worse" in said
    assert "the groups differ significantly" in said
    assert "from 5 known ratings on" in said
    assert "REG-PAML takes 40.5 s to train and 1.5 ms" in said
    assert re.search(r"item \+ user bias takes [\d.]+ s to tune and fit and [\d.]+ ms", said)
    assert re.search(r"The reference, matrix factorisation, retrained, .* lower than REG-PAML\.", said)
    assert "lose to item + user bias; REG-PAML gamma=1e-05 to 1 more" in said
    effect = sureness(next(line for line in found.paired["mse"] if line.method == "reg_paml"))
    assert effect == "sure"


@pytest.mark.parametrize("seed", range(4))
def test_no_effect_is_not_claimed(make: Make, seed: int) -> None:
    found = make(effect=0.0, seed=seed, variants=(), baselines=["item_mean", "bias"])
    assert {sureness(line) for line in found.paired["mse"]} <= {"not significant", "seeds disagree"}
    assert any(line.startswith("No method differs") for line in found.verdict)


def test_seeds_that_disagree_are_not_sure(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path, effect=0.0, methods=["paml"], variants=(), baselines=["bias"])
    rows = pl.read_parquet(folder / "rows.parquet")
    shift = (
        pl.when(pl.col("method") == "paml", pl.col("seed") == 0).then(-0.5).when(pl.col("method") == "paml").then(0.2)
    )
    rows.with_columns(mse=pl.col("mse") + shift.otherwise(0.0)).write_parquet(folder / "rows.parquet")
    found = summarise_comparison(folder, resamples=QUICK)
    assert found.paired["mse"][0].holm_p < 0.01
    assert sureness(found.paired["mse"][0]) == "seeds disagree"
    said = text_of(found)
    assert "but the seeds disagree in sign: not sure" in said
    assert "No method differs surely from the best baseline, item + user bias." in said


def test_a_gap_is_equal_different_small_or_undecided() -> None:
    def judged(welch_p: float | None, equivalence_p: float | None) -> str:
        return judgement(GroupGap(1.0, 1.1, 0.1, None, None, welch_p, 0.05, equivalence_p, 9, 9, 0))

    assert judged(0.5, 0.01) == "equal"
    assert judged(0.01, 0.5) == "different"
    assert judged(0.01, 0.01) == "small"
    assert judged(0.5, 0.5) == "undecided"
    assert judged(None, None) == "unknown"


def test_a_gap_shown_to_be_equal_is_reported_so(make: Make) -> None:
    found = make()

    def sentence(equivalence_p: float) -> str:
        groups = found.groups["reg_paml"]
        gap = replace(groups.gap, welch_p=0.6, equivalence_p=equivalence_p)
        changed = {**found.groups, "reg_paml": groups.model_copy(update={"gap": gap})}
        return " ".join(verdict(found.model_copy(update={"groups": changed})))

    assert "shown to be equal within 5 %" in sentence(0.01)
    assert "neither a difference nor equality within 5 % is shown" in sentence(0.4)


def test_a_half_finished_grid(make: Make) -> None:
    unfinished = (("bias", 1), ("paml", 0), ("reg_paml", 0), ("reg_paml", 1))
    found = make(unfinished=unfinished)
    assert [(cell.method, cell.seed) for cell in found.missing] == list(unfinished)
    assert found.mean("reg_paml") is None
    assert found.seeds == (0,)  # no seed is complete: the first of those that lack the fewest entries
    assert found.summary("paml").seeds == 0
    assert found.summary("melu").seeds == 1
    assert found.best.method == "reg_paml gamma=0.01"
    assert not {"paml", "reg_paml"} & {line.method for line in found.paired["mse"]}
    assert found.groups["reg_paml"].gap.difference is None
    assert found.cost["reg_paml"].fit_seconds is None
    said = text_of(found)
    assert "Preliminary: 4 of 18 cells are not finished" in said


def test_nothing_finished_yet(make: Make) -> None:
    found = make(unfinished=tuple((name, seed) for name in ENTRIES for seed in (0, 1)))
    assert len(found.missing) == 18
    assert found.best == Best(baseline=None, method=None)
    assert found.shots["mse"].values == ()
    assert found.by_activity.bins == ()
    assert found.verdict[0] == "No test user was scored, so nothing can be concluded."


def test_no_test_users(make: Make) -> None:
    found = make(users=0)
    assert found.missing == ()
    assert found.verdict == ("No test user was scored, so nothing can be concluded.",)


@pytest.mark.parametrize(("minor", "absent"), [(0.0, "minor"), (1.0, "major")])
def test_an_empty_group(make: Make, minor: float, absent: str) -> None:
    found = make(minor=minor)
    assert found.summary("paml", group=absent).mean is None
    assert f"There are no {absent} users among the test users" in text_of(found)


def test_a_metric_that_is_undefined_for_many_users(make: Make) -> None:
    found = make(undefined=0.5)
    assert found.summary("paml", "ndcg3").undefined == 60
    assert "nDCG@3 and nDCG@5 are undefined for 60 of 120 rows (a user in a seed)" in text_of(found)
    nobody = make(undefined=1.0, seeds=(0,))
    assert nobody.mean("paml", "ndcg3") is None
    assert nobody.paired["ndcg3"] == ()
    assert "nDCG@3 and nDCG@5 are undefined for 60 of 60 test users" in text_of(nobody)


def test_one_seed(make: Make) -> None:
    found = make(seeds=(7,))
    assert found.summary("paml").deviation is None
    assert "There is only one seed" in text_of(found)


def test_only_baselines_and_only_methods(make: Make) -> None:
    simple = make(methods=[], variants=())
    assert simple.best == Best(baseline="bias", method=None)
    assert simple.paired["mse"] == ()
    assert "there is no method to compare with" in text_of(simple)
    trained = make(baselines=[])
    assert trained.best == Best(baseline=None, method="reg_paml")
    assert trained.groups["reg_paml"].gap_against_baseline is None
    assert "there is no baseline to compare with" in text_of(trained)


def test_one_user(make: Make) -> None:
    said = text_of(make(users=1))
    assert "; 1 user, " in said
    assert "1 users" not in said
    assert "cannot be tested" in said
    assert "from 1 known rating on" in said


def test_a_baseline_that_is_best(make: Make) -> None:
    said = text_of(make(source="bookcrossing", methods=["melu"], variants=()))
    assert said.startswith("Item + user bias, a baseline, is best: MSE ")
    assert "The best method, MeLU (" in said
    assert "higher than that" in said
    assert "By the means, MeLU loses to item + user bias." in said
    assert "at no number of known ratings" in said
    assert re.search(r"The reference, .* lower than item \+ user bias\.", said)


def test_clicks(make: Make) -> None:
    found = make(target="click", source="taobao")
    assert [metric.name for metric in found.plan.about("rows")] == ["nel", "auc"]
    assert found.plan.headline.name == "nel"
    assert "REG-PAML is best: NEL 0.0" in text_of(found)
    assert found.paper is not None
    assert found.paper.rows == ()
    assert "figures only" in found.paper.notes[0]


def test_the_paper_beside_ours(make: Make) -> None:
    found = make()
    assert found.paper is not None
    rows = {(row.table, row.label, row.metric, row.group): row for row in found.paper.rows}
    melu = rows["comparison", "MeLU", "mse", "all"]
    assert (melu.paper, melu.paper_deviation) == (1.451, 0.022)
    assert melu.ours == found.mean("melu")
    assert rows["comparison", "Meta-SGD", "mse", "all"].ours is None
    variant = rows["ablation", "REG-PAML gamma=0.01", "mse", "all"]
    assert (variant.method, variant.paper) == ("reg_paml gamma=0.01", 1.191)
    assert rows["ablation", "REG-PAML gamma=0.001", "ndcg3", "all"].method == "reg_paml"
    assert rows["ablation", "REG-PAML gamma=0.0001", "mse", "all"].ours is None
    assert rows["groups", "AT-PAML", "p_value", "all"].paper == 0.018
    assert rows["groups", "MeLU", "p_value", "all"].ours == found.groups["melu"].test.p_value
    constant = found.mean("training_mean")
    said = " ".join(found.paper.differences)
    assert f"has an MSE of {constant:.3f}: 4 of the paper's 5 methods are worse" in said
    assert "recipe 'tuned'" in said
    assert make(source="synthetic", group_by=None).paper is None
    better = make(methods=["at_paml"], variants=("at_paml outer_rate=5e-4",), effect=-1.0).paper
    assert better is not None
    assert "our AT-PAML does not fail: MSE" in " ".join(better.footnotes["failure"])


def test_the_papers_ranking_may_be_better_although_its_error_is_larger(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path, methods=["melu", "reg_paml"], variants=())
    rows = pl.read_parquet(folder / "rows.parquet")
    rows.with_columns(mse=pl.col("mse") * 0.5, ndcg3=pl.lit(0.7)).write_parquet(folder / "rows.parquet")
    paper = summarise_comparison(folder, resamples=0).paper
    assert paper is not None
    said = " ".join(paper.differences)
    assert (
        "For MeLU and REG-PAML our ranking is worse than the paper's, although our MSE is lower (nDCG@3 0.700" in said
    )
    assert "against 0.779 to 0.793, by chance 0.600" in said
    rows.with_columns(mse=pl.col("mse") * 9, ndcg3=pl.lit(0.7)).write_parquet(folder / "rows.parquet")
    paper = summarise_comparison(folder, resamples=0).paper
    assert paper is not None
    assert "our ranking is worse" not in " ".join(paper.differences)


def test_every_two_methods(make: Make, tmp_path: Path) -> None:
    found = make()
    assert len(found.pairs) == 10  # of three methods and two variants
    assert "pairs of methods differ surely" in text_of(found)
    many = make(variants=(*VARIANTS, "reg_paml outer_rate=5e-4", "paml outer_rate=5e-5", "reg_paml head=classes"))
    pairs = [(line.reference, line.method) for line in many.pairs]
    assert pairs[:3] == [("melu", "paml"), ("melu", "reg_paml"), ("paml", "reg_paml")]
    assert ("reg_paml", "reg_paml head=classes") in pairs
    assert ("paml", "paml outer_rate=5e-5") in pairs
    assert pairs[-1] == ("reg_paml", "paml outer_rate=5e-5")  # too many for every two
    assert len(pairs) == 3 + 5 + 1
    folder = write_comparison(tmp_path, variants=())
    rows = pl.read_parquet(folder / "rows.parquet")
    paml = rows.filter(pl.col("method") == "paml")
    same = paml.with_columns(method=pl.lit("reg_paml"))
    pl.concat([rows.filter(pl.col("method") != "reg_paml"), same]).write_parquet(folder / "rows.parquet")
    found = summarise_comparison(folder, resamples=QUICK)
    assert [line.identical for line in found.pairs] == [False, False, True]
    assert "not so PAML and REG-PAML. PAML and REG-PAML have the same value for every user." in text_of(found)


def test_the_level_by_chance(make: Make) -> None:
    assert {name: level.mean for name, level in make().chance.items()} == pytest.approx({"ndcg3": 0.6, "ndcg5": 0.6})
    assert {name: level.mean for name, level in make(target="click", source="taobao").chance.items()} == {"auc": 0.5}
    assert make(users=0).chance.keys() <= {"ndcg3", "ndcg5"}


def test_bookcrossing_has_its_own_numbers(make: Make) -> None:
    found = make(source="bookcrossing", methods=["melu"], variants=()).paper
    assert found is not None
    assert {row.table for row in found.rows} == {"comparison"}
    assert len(found.rows) == 15
    assert any(said.endswith("users, and the paper 7,827.") for said in found.differences)
    assert "reading=paper" in " ".join(found.footnotes["comparison"])


def test_damaged_and_old_plans_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"plan\.json: is missing; a folder made by `paml compare` expected"):
        read_plan(tmp_path)
    write_comparison(tmp_path)
    whole = json.loads((tmp_path / "plan.json").read_text())
    for change, message in (
        ({"format": 1}, "is of format 1, and this version reads format 4; compare again with this version"),
        ({"metrics": []}, "'metrics': .*; compare again with this version"),
        ({"data": {**whole["data"], "target": "smell"}}, r"'data\.target': .*'rating', 'click' or 'choice'"),
        ({"colour": "blue"}, "'colour': Extra inputs"),
    ):
        (tmp_path / "plan.json").write_text(json.dumps({**whole, **change}))
        with pytest.raises(FormatError, match=message):
            summarise_comparison(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(FormatError, match=r"is not (a )?JSON"):
            read_plan(tmp_path)


def test_results_are_read_as_they_were_written(make: Make, tmp_path: Path) -> None:
    found = make(unfinished=(("paml", 1),), undefined=0.5)
    write_results(tmp_path, found)
    assert read_results(tmp_path) == found
    assert "cost" not in json.loads((tmp_path / "results.json").read_text())
    (tmp_path / "results.json").write_text('{"format": 1}')
    with pytest.raises(FormatError, match=r"results\.json: is of format 1, .*; compare again with this version"):
        read_results(tmp_path)


def test_what_is_not_a_number_is_none() -> None:
    assert ProfileMean(mean=float("nan"), users=1).mean is None
    assert ProfileMean(mean=float("inf"), users=1).mean is None


def test_lists_are_compared_as_errors_are(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path)
    found = summarise_comparison(folder, resamples=QUICK)
    rows, scenarios = (pl.read_parquet(folder / f"{name}.parquet") for name in ("rows", "scenarios"))
    assert found.best_lists == Best(baseline="bias", method="reg_paml")
    assert found.mean("training_mean", "ndcg10") is None  # it only predicts
    assert "training_mean" not in found.list_groups
    groups = found.list_groups["reg_paml"]
    assert groups.gap == fairness.gap(rows, "reg_paml", "ndcg10", resamples=QUICK)
    assert groups.gap_against_baseline == fairness.gap_difference(rows, "reg_paml", "bias", "ndcg10", resamples=QUICK)
    assert list(found.shots) == ["mse", *(metric.name for metric in found.plan.about("list"))]
    assert set(found.paired) == {metric.name for metric in found.plan.about("rows", "list")}  # contents are not judged
    for test in found.shot_tests["ndcg10"]:
        part = scenarios.filter(pl.col("scenario") == "shots", pl.col("value") == test.value)
        means = dict(part.group_by("method").agg(pl.col("ndcg10").mean()).iter_rows())
        assert test.method == max((*METHODS, *VARIANTS), key=lambda name: means[name])
        assert test.method_mean == pytest.approx(means[test.method])
        assert test.ratio == pytest.approx(means[test.method] / means[test.baseline])
        both = part.filter(pl.col("method").is_in([test.method, test.baseline]))
        assert test.paired == statistics.paired(both, test.method, test.baseline, "ndcg10", resamples=QUICK)


def test_what_is_said_about_lists(make: Make) -> None:
    said = text_of(make())
    assert "Of all items, REG-PAML shows users the best list: nDCG@10, catalogue 0.31" in said
    assert "higher than the best baseline that ranks, item + user bias (0.2" in said
    assert re.search(r"REG-PAML has better lists than every baseline (from|at) .* \(by the means\)", said)
    assert "By the lists, with REG-PAML, minor users (20 of 60 users) fare worse than major users" in said
    assert "By the lists, against item + user bias, minor users change by +0.0" in said
    assert re.search(r"REG-PAML's first ten show [\d.]+ % of all items to somebody; those of item \+ user bias", said)
    worse = text_of(make(methods=["melu"], variants=()))
    assert "item + user bias, a baseline, shows users the best list: nDCG@10, catalogue" in worse
    assert "The best method by its lists, MeLU (0.2" in worse
    assert "there is no method that ranks to compare with" in text_of(make(methods=[], variants=()))
    assert "there is no baseline that ranks to compare with" in text_of(make(baselines=["training_mean"]))


def test_entries_that_only_rank(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path)
    for name in ("rows", "scenarios"):
        frame = pl.read_parquet(folder / f"{name}.parquet")
        only = pl.col("method").is_in(["bias", "reg_paml"])
        errors = ("mse", "mae", "ndcg3", "ndcg5")
        frame.with_columns(pl.when(~only).then(pl.col(one)).alias(one) for one in errors).write_parquet(
            folder / f"{name}.parquet"
        )
    found = summarise_comparison(folder, resamples=QUICK)
    assert found.best == Best(baseline="item_mean", method="reg_paml gamma=0.01")
    assert found.best_lists == Best(baseline="bias", method="reg_paml")
    assert {line.method for line in found.paired["mse"]} == {"melu", "paml", *VARIANTS}
    assert {line.method for line in found.paired["ndcg10"]} == {*METHODS, *VARIANTS}
    assert found.loses_to["reg_paml"] == ()
    assert found.groups["reg_paml"].gap.difference is None
    assert "MSE is undefined" not in " ".join(found.verdict)
    assert any("REG-PAML shows users the best list" in sentence for sentence in found.verdict)


def test_what_lists_are_ordered_by(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path)
    found = summarise_comparison(folder, resamples=QUICK)
    rows, scenarios = (pl.read_parquet(folder / f"{name}.parquet") for name in ("rows", "scenarios"))
    assert list(found.by.means) == METHODS  # variants and baselines have only one order here
    part = scenarios.filter(pl.col("scenario") == "by", pl.col("method") == "paml")
    for order, means in found.by.means["paml"].items():
        usual = rows.filter(pl.col("method") == "paml")
        own = usual if order == "preference" else part.filter(pl.col("value") == order, pl.col("known") == "all")
        assert means["recall20"] == pytest.approx(own["recall20"].mean())
    curve = found.by.shots["choice"]
    assert curve.values == ("0", "1", "3", "5", "10", "20", "all")
    assert curve.means["paml"][-1] == pytest.approx(found.by.means["paml"]["choice"]["ndcg10"])
    test = found.by.choice_over_rating["ndcg10"]["paml"]
    means = found.by.means["paml"]
    assert test.difference == pytest.approx(means["choice"]["ndcg10"] - means["rating"]["ndcg10"])
    assert test.interval is not None
    assert test.holm_p is not None
    choice = scenarios.filter(pl.col("scenario") == "by", pl.col("value") == "choice", pl.col("known") == "all")
    for metric in ("ndcg10", "recall20"):
        lines = found.by.personal_rates[metric]
        assert [(line.method, line.reference) for line in lines] == [("paml", "melu"), ("reg_paml", "melu")]
        assert lines == tuple(statistics.paired_table(choice, "melu", metric, resamples=QUICK))


def test_what_is_said_about_orders(make: Make) -> None:
    said = text_of(make())
    assert re.search(
        r"Ordered by choice and not by predicted rating, REG-PAML's lists have nDCG@10 0\.\d+ and not 0\.\d+ "
        r"\(difference \+0\.\d+, 95 % interval 0\.\d+ to 0\.\d+\); by preference, which blends them, 0\.\d+\. "
        r"In lists by choice alone, a rate of one's own helps PAML and REG-PAML against MeLU: PAML \+0\.",
        said,
    )
    alike = text_of(make(effect=0.0))
    assert "a rate of one's own brings nothing sure against MeLU" in alike
    alone = text_of(make(methods=["paml"], variants=()))
    assert "Ordered by choice" in alone
    assert "a rate of one's own" not in alone  # there is nothing to compare with
    assert "Ordered by choice" not in text_of(make(target="click", source="taobao", variants=()))


@pytest.mark.parametrize("content", ["", "[", "{}", "[1]", '[{"method": "paml"}]', "\xff"])
def test_damaged_failures_are_an_error_with_a_remedy(tmp_path: Path, content: str) -> None:
    (tmp_path / "failures.json").write_text(content, encoding="latin-1")
    with pytest.raises(FormatError, match="is not a list of failures") as raised:
        read_failures(tmp_path)
    assert raised.value.where == str(tmp_path / "failures.json")
    assert raised.value.remedy == "remove it: failed cells are then tried again"


def test_without_baselines_the_other_is_called_what_it_is(make: Make) -> None:
    wishes: dict[str, Any] = {"effect": 0.0, "variants": (), "methods": ["melu", "paml"], "seed": 1}
    alone, usual = make(baselines=[], **wishes), make(baselines=["bias"], **wishes)
    assert [line.reference for line in alone.paired["mse"]] == ["melu"]
    assert "from the best of the paper's baselines, MeLU." in text_of(alone)
    assert "from the best baseline, item + user bias." in text_of(usual)
    for table, ranks in ((paired, ""), (paired_lists, " that ranks")):
        assert table(alone).title.endswith(" against the best of the paper's baselines")
        assert "the best of the paper's, which are methods here, by the same metric: by" in table(alone).note
        assert table(usual).title.endswith(f" against the best baseline{ranks}")
        assert "The baseline is the best by the same metric: by" in table(usual).note
    assert not shot_tests(alone)  # there is no baseline at any number of known ratings
