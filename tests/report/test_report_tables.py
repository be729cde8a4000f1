"""Tables say what the results say, in every form."""

import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from paml.analysis.format import NOTHING, amount, count, listing, number, p_value, precise, significant, spread
from paml.analysis.results import Results
from paml.analysis.sentences import sureness
from paml.errors import SettingsError
from paml.report.render import Form, Table, render
from paml.report.tables import all_tables
from report.comparison import METHODS, VARIANTS, summarised

Make = Callable[..., Results]
AWKWARD = "a & b_c % #1 $x$ {y} ~^ \\ | * [z] <w>"
ORDERS = ["list_orders", "choice_shots", "personal_rates"]
AGAINST = ["against_ndcg10", "against_recall20"]
LISTS = ["lists", *ORDERS, "list_contents", "list_shots", *AGAINST, "list_groups", "paired_lists"]
OTHERS = ["rates", "paired", "pairs", "shots", "activity", "by_group", "items", "cost"]
EVERY = ["comparison", "groups", *LISTS, *OTHERS]
PAPER = ["paper_comparison", "paper_ablation", "paper_groups", "paper_ablation_groups", "paper_failure"]
ABLATION = ("reg_paml gamma=0.01", "at_paml outer_rate=5e-4", "paml outer_rate=5e-5", "reg_paml head=classes")
WISHES: dict[str, dict[str, Any]] = {
    "whole": {},
    "clicks": {"target": "click", "source": "taobao"},
    "half finished": {"unfinished": (("bias", 1), ("paml", 0), ("reg_paml", 0), ("reg_paml", 1))},
    "no minor users": {"minor": 0.0},
    "undefined": {"undefined": 1.0, "seeds": (0,)},
    "one seed": {"seeds": (7,)},
    "one user": {"users": 1},
    "nobody": {"users": 0},
    "only baselines": {"methods": [], "variants": ()},
    "only methods": {"baselines": []},
}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def summarise(**wishes: Any) -> Results:
        return summarised(tmp_path / "out", **wishes)

    return summarise


def parsed(text: str) -> list[dict[str, str]]:
    """The lines of a table in Markdown: column -> cell, marks and escapes removed."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    split = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    plain = [[plainly(cell) for cell in row] for row in split]
    return [dict(zip(plain[0], row, strict=True)) for row in plain[2:]]


def plainly(cell: str) -> str:
    unmarked = re.sub(r"^(\*\*|_)|(?<!\\)(\*\*|_)$", "", cell)
    return html.unescape(re.sub(r"\\(.)", r"\1", unmarked))


def named(results: Results) -> dict[str, Table]:
    return {table.name: table for table in all_tables(results)}


def test_rendered_tables_equal_the_results(make: Make) -> None:
    found = make()
    tables = named(found)
    assert list(tables) == [*EVERY, *PAPER]
    label = {entry.label: entry.name for entry in found.plan.entries}
    *lines, chance = parsed(render(tables["comparison"], "markdown"))
    assert (chance[""], chance["MSE ↓"], chance["nDCG@3 ↑"]) == ("by chance", "", "0.600 ± 0.000")
    assert {line[""] for line in lines} == set(label)
    for line in lines:
        for metric, title in (("mse", "MSE ↓"), ("ndcg3", "nDCG@3 ↑"), ("ndcg5", "nDCG@5 ↑"), ("mae", "MAE ↓")):
            name = label[line[""]]
            one = found.summary(name, metric)
            star = "*" if name in found.improvements[metric] and found.improvements[metric][name].star else ""
            assert line[title] == f"{one.mean:.3f} ± {one.deviation:.3f}{star}"
    for line in parsed(render(tables["groups"], "markdown")):
        groups = found.groups[label[line[""]]]
        assert line["gap"] == number(groups.gap.difference)
        assert line["p"] == p_value(groups.test.p_value)
        assert line["p (equal)"] == p_value(groups.gap.equivalence_p)
    paired = {(line["metric"], label[line["method"]]): line for line in parsed(render(tables["paired"], "markdown"))}
    assert len(paired) == 4 * (len(METHODS) + len(VARIANTS))
    for test in found.paired["mse"]:
        line = paired["MSE", test.method]
        assert line["difference"] == number(test.difference)
        assert line["p (Holm)"] == p_value(test.holm_p)
    for line in parsed(render(tables["shots"], "markdown")):
        assert list(line.values())[1:] == [number(mean) for mean in found.shots["mse"].means[label[line[""]]]]
    for line in parsed(render(tables["items"], "markdown")):
        assert line["cold items (15 users)"] == number(found.items.cold[label[line[""]]])
    assert found.by_group is not None
    for line in parsed(render(tables["by_group"], "markdown")):
        assert line["18 (20 users)"] == number(found.by_group.values["18"][label[line[""]]].mean)
    for line in parsed(render(tables["cost"], "markdown")):
        assert line["fit, s"] == amount(found.cost[label[line[""]]].fit_seconds)
    beside = {line[""]: line for line in parsed(render(tables["paper_comparison"], "markdown"))}
    assert beside["MeLU"]["MSE, paper"] == "1.451 ± 0.022"
    ours = found.summary("melu")
    assert beside["MeLU"]["MSE, ours"] == spread(ours.mean, ours.deviation)
    assert beside["Meta-SGD"]["MSE, ours"] == NOTHING


def test_tables_of_lists_equal_the_results(make: Make) -> None:
    found = make()
    tables, label = named(found), {entry.label: entry.name for entry in found.plan.entries}
    lines = parsed(render(tables["lists"], "markdown"))
    assert {label[line[""]] for line in lines} == set(label.values()) - {"training_mean"}  # which does not rank
    for line in lines:
        name = label[line[""]]
        one = found.summary(name, "ndcg10")
        assert line["nDCG@10 ↑"] == spread(one.mean, one.deviation)
        assert line["recall@20 ↑"] == number(found.mean(name, "recall20"))
    for line in parsed(render(tables["list_contents"], "markdown")):
        assert line["coverage"] == number(found.pooled["coverage"][label[line[""]]].mean)
        assert line["diversity"] == number(found.mean(label[line[""]], "diversity"))
    assert not tables["list_contents"].best  # described, and not judged
    for line in parsed(render(tables["list_shots"], "markdown")):
        assert list(line.values())[1:] == [number(mean) for mean in found.shots["ndcg10"].means[label[line[""]]]]
    for metric in ("ndcg10", "recall20"):
        against = parsed(render(tables[f"against_{metric}"], "markdown"))
        for line, test in zip(against, found.shot_tests[metric], strict=True):
            assert (label[line["best baseline"]], label[line["best method"]]) == (test.baseline, test.method)
            assert (line["its value"], line["value"]) == (number(test.baseline_mean), number(test.method_mean))
            assert line["ratio"] == number(test.ratio, 2)
            assert line["seeds"] == "agree"
    for line in parsed(render(tables["list_groups"], "markdown")):
        groups = found.list_groups[label[line[""]]]
        assert (line["major"], line["gap"]) == (number(groups.gap.major), number(groups.gap.difference))
    paired = {
        (line["metric"], label[line["method"]]): line for line in parsed(render(tables["paired_lists"], "markdown"))
    }
    for test in found.paired["ndcg10"]:
        assert paired["nDCG@10", test.method]["difference"] == number(test.difference)
    assert "nDCG@10 ↑" not in tables["comparison"].columns  # lists have tables of their own


def test_tables_of_lists_fit_on_a_terminal(make: Make) -> None:
    tables = named(make())
    assert all(max(map(len, render(tables[name], "text").splitlines())) <= 120 for name in LISTS)


def test_rates_and_pairs_equal_the_results(make: Make) -> None:
    found = make()
    tables, label = named(found), {entry.label: entry.name for entry in found.plan.entries}
    pairs = parsed(render(tables["pairs"], "markdown"))
    for line, test in zip(pairs, found.pairs, strict=True):
        assert (label[line["first"]], label[line["second"]]) == (test.reference, test.method)
        assert line["difference"] == precise(test.difference, 3)
        assert line["p (Holm)"] == p_value(test.holm_p)
    for line in parsed(render(tables["rates"], "markdown")):
        rates = found.rates[label[line[""]]]
        assert (line["mean"], line["gap"]) == (significant(rates.mean), significant(rates.gap.difference))
        assert line["bound"] == amount(rates.bound)


def test_tables_have_the_papers_numbers_lines_and_stars(make: Make) -> None:
    found = make(methods=["paml", "at_paml", "reg_paml"], variants=ABLATION, recipe="paper")
    tables = named(found)
    numbered = {name: re.search(r"\((Tab\. \d|Fig\. \d)\)", tables[name].title) for name in PAPER}
    assert [match.group(1) for match in numbered.values() if match] == [
        "Tab. 2",
        "Tab. 3",
        "Tab. 4",
        "Tab. 5",
        "Fig. 8",
    ]
    ablation = {line[""]: line for line in parsed(render(tables["paper_ablation"], "markdown"))}
    assert ablation["REG-PAML gamma=0.01"]["MSE, paper"] == "1.191 ± 0.021*"
    assert ablation["PAML"]["MSE, paper"] == "1.520 ± 0.034"
    assert found.against_paml["mse"]["reg_paml"].star
    assert ablation["REG-PAML gamma=0.001"]["MSE, ours"].endswith("*")
    assert not ablation["PAML"]["MSE, ours"].endswith("*")
    assert ablation["PAML outer_rate=5e-5"]["MSE, paper"] == NOTHING
    assert ablation["REG-PAML head=classes"]["MSE, ours"] == ablation_cell(found, "reg_paml head=classes")
    assert tables["paper_ablation"].rules == (6,)
    failure = {line[""]: line for line in parsed(render(tables["paper_failure"], "markdown"))}
    assert failure["MSE minor"]["AT-PAML, paper"] == "1.382 ± 0.011"
    quoted = {"MSE": "2.127", "MSE major": "1.477", "MSE minor": "3.148", "nDCG@3": "0.782", "nDCG@5": "0.792"}
    assert {name: failure[name]["AT-PAML outer_rate=0.0005, paper"] for name in quoted} == quoted
    assert "our AT-PAML fails, too: MSE" in tables["paper_failure"].note
    failed = found.summary("at_paml outer_rate=5e-4", group="minor")
    assert failure["MSE minor"]["AT-PAML outer_rate=0.0005, ours"] == spread(failed.mean, failed.deviation)


def ablation_cell(results: Results, name: str) -> str:
    found = results.summary(name)
    return spread(found.mean, found.deviation) + ("*" if results.against_paml["mse"][name].star else "")


def test_the_papers_costs_stand_beside_its_own_settings_only(make: Make) -> None:
    wishes = {"methods": ["melu", "paml", "at_paml"], "variants": ()}
    tuned, paper = (named(make(**wishes, recipe=recipe))["cost"] for recipe in ("tuned", "paper"))
    assert "the paper's time" not in tuned.columns
    lines = {line[""]: line for line in parsed(render(paper, "markdown"))}
    assert [lines[name]["the paper's memory"] for name in ("MeLU", "PAML", "AT-PAML")] == [NOTHING, "669 MB", "2.12 GB"]
    assert lines["AT-PAML"]["the paper's time"] == "4 h"
    assert "GTX 1080" in paper.note
    elsewhere = named(make(**wishes, recipe="paper", source="bookcrossing"))["cost"]
    assert "the paper's time" not in elsewhere.columns


def test_remarks_say_in_words_who_loses(make: Make) -> None:
    remarks = {line[""]: line["remark"] for line in parsed(render(named(make())["comparison"], "markdown"))}
    assert remarks["item + user bias"] == "best baseline"
    assert remarks["MeLU"] == "loses to item + user bias"
    assert remarks["REG-PAML"] == "beats every baseline"
    assert remarks["REG-PAML gamma=1e-05"] == "loses to item + user bias and item's mean"
    assert remarks["matrix factorisation, retrained"] == "reference"
    alike = make(effect=0.001)
    remarks = {line[""]: line["remark"] for line in parsed(render(named(alike)["comparison"], "markdown"))}
    for name, losses in alike.loses_to.items():
        line = next(line for line in alike.paired["mse"] if line.method == name)
        label = alike.plan.labels[name]
        if losses:
            assert sureness(line) == "not significant"
            assert remarks[label].startswith("loses to ")
            assert " (not significant)" in remarks[label]
    assert any(alike.loses_to.values())
    half = make(**WISHES["half finished"])
    remarks = {line[""]: line["remark"] for line in parsed(render(named(half)["comparison"], "markdown"))}
    assert remarks["REG-PAML"] == "0 of 2 seeds"
    assert remarks["PAML"].startswith("1 of 2 seeds; ")


def test_the_best_is_bold_and_references_are_not_ranked(make: Make) -> None:
    table = named(make())["comparison"]
    labels = [row[0] for row in table.rows]
    assert labels[0] == "matrix factorisation, retrained"
    assert table.rules[0] == 1
    assert table.best == {(labels.index("REG-PAML"), column) for column in range(1, 5)}
    assert table.second == {(labels.index("REG-PAML gamma=0.01"), column) for column in range(1, 5)}
    assert "**" in render(table, "markdown")
    assert r"\textbf{" in render(table, "latex")
    assert "(1) best, (2) second best" in render(table, "text")


@pytest.mark.parametrize("wishes", WISHES.values(), ids=list(WISHES))
def test_nothing_undefined_is_ever_printed(make: Make, wishes: dict[str, Any]) -> None:
    results = make(**wishes)
    for table in all_tables(results):
        for form in get_args(Form):
            text = render(table, form)
            assert not re.search(r"\b(nan|none|null|inf)\b", text, re.IGNORECASE), (table.name, form)
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert any(cell != NOTHING for row in table.rows for cell in row[1:])


def test_empty_tables_are_omitted(make: Make) -> None:
    assert [name for name in named(make(users=0)) if name not in PAPER] == ["cost"]
    assert "paired" not in named(make(methods=[], variants=()))
    assert not {"by_group", *PAPER} & set(named(make(source="synthetic", group_by=None)))


def test_columns_of_plain_text_are_aligned(make: Make) -> None:
    text = render(named(make(**WISHES["half finished"]))["comparison"], "text")
    numbers = [re.findall(r"\d\.\d{3}", line) for line in text.splitlines() if not line.startswith("Mean")]
    lines = [line for line, found in zip(text.splitlines(), numbers, strict=False) if len(found) > 3]
    assert lines
    first_number = {found.start() for line in lines if (found := re.search(r"\d\.\d{3}", line))}
    assert len(first_number) == 1
    assert max(map(len, text[text.index("(1) best") :].splitlines())) <= 100


def test_latex_and_markdown_escape() -> None:
    table = Table("t", AWKWARD, ("", AWKWARD), ((AWKWARD, "1.0*"), ("* first", "−2.0")), AWKWARD, frozenset({(0, 1)}))
    latex = render(table, "latex")
    assert (
        r"a \& b\_c \% \#1 \$x\$ \{y\} \textasciitilde{}\textasciicircum{} \textbackslash{} \textbar{} {*} {[}z{]}"
        in latex
    )
    assert r"\textbf{1.0}$^{*}$ \\" in latex
    assert "{*} first & $-$2.0" in latex
    body = latex[latex.index(r"\toprule") : latex.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert [len(re.findall(r"(?<!\\)&", row)) for row in rows] == [1, 1, 1]
    plain = latex.replace(r"\{", "").replace(r"\}", "")
    assert plain.count("{") == plain.count("}")
    assert len(re.findall(r"(?<!\\)\$", latex)) % 2 == 0
    assert latex.isascii()
    markdown = render(table, "markdown")
    lines = parsed(markdown)
    assert list(lines[0]) == ["", AWKWARD]
    assert "**1.0\\***" in markdown


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_values_with_line_breaks_stay_in_their_cells(form: Form) -> None:
    def made(value: str) -> Table:
        return Table("t", f"MSE by {value}", ("", f"{value} (3 users)"), ((value, "1.0"), ("b", "2.0")), f"Of {value}.")

    assert render(made("two\r\n\n lines\t\u2028x"), form) == render(made("two lines x"), form)


def test_latex_of_all_tables_is_ascii_and_whole(make: Make) -> None:
    for table in all_tables(make()):
        latex = render(table, "latex")
        assert latex.isascii(), set(filter(lambda symbol: not symbol.isascii(), latex))
        columns = re.search(r"\\begin\{tabular\}\{([lr]+)\}", latex)
        assert columns is not None
        for row in [line for line in latex.splitlines() if line.endswith(r"\\")]:
            assert len(re.findall(r"(?<!\\)&", row)) == len(columns.group(1)) - 1
        begun, ended = (re.findall(rf"\\{word}\{{(\w+)\}}", latex) for word in ("begin", "end"))
        assert begun == ended[::-1]


def test_unknown_forms_are_refused(make: Make) -> None:
    table = named(make())["cost"]
    with pytest.raises(SettingsError, match="did you mean 'markdown'"):
        render(table, "markdwn")  # type: ignore[arg-type]
    assert render(replace(table, note=""), "text").endswith("\n")


def test_words() -> None:
    assert (count(1, "user"), count(2, "user"), count(1200, "user")) == ("1 user", "2 users", "1,200 users")
    assert (number(-0.0001), number(-1.5), number(None)) == ("0.000", "−1.500", NOTHING)
    shown = {None: NOTHING, 1234.5: "1,234", 40.5: "40.5", 1.5: "1.5", 0.02: "0.02", 0.0: "0", 0.00001: "0.00001"}
    shown |= {2.5e-6: "0.0000025", 5e-7: "5.00e−7"}
    assert {value: amount(value) for value in shown} == shown
    small = {
        None: NOTHING,
        0.0: "0",
        0.000998: "0.000998",
        -1.23456e-5: "−0.0000123",
        1.5e-8: "1.50e−8",
        1234.0: "1,234",
    }
    assert {value: significant(value) for value in small} == small
    assert [precise(value, 3) for value in (0.123, 0.0123, 0.00123, 0.0, None)] == [
        "0.123", "0.012", "0.0012", "0.000", NOTHING
    ]  # fmt: skip
    assert [p_value(p) for p in (None, 0.0001, 0.0499, 0.05)] == [NOTHING, "<0.001", "<0.05", "0.050"]
    assert [listing(names, 1) for names in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a and 2 more"]


def test_tables_of_orders_equal_the_results(make: Make) -> None:
    found = make()
    tables, label = named(found), {entry.label: entry.name for entry in found.plan.entries}
    lines = parsed(render(tables["list_orders"], "markdown"))
    assert [line["metric"] for line in lines] == ["nDCG@10"] * 3 + ["recall@20"] * 3
    for line in lines:
        name, metric = label[line[""]], {"nDCG@10": "ndcg10", "recall@20": "recall20"}[line["metric"]]
        for order in ("rating", "choice", "preference"):
            assert line[f"by {order}"] == number(found.by.means[name][order][metric])
        assert line["choice − rating"] == number(found.by.choice_over_rating[metric][name].difference)
    for line in parsed(render(tables["choice_shots"], "markdown")):
        assert list(line.values())[1:] == [number(mean) for mean in found.by.shots["choice"].means[label[line[""]]]]
    tests = parsed(render(tables["personal_rates"], "markdown"))
    expected = [*found.by.personal_rates["ndcg10"], *found.by.personal_rates["recall20"]]
    for line, test in zip(tests, expected, strict=True):
        assert label[line["method"]] == test.method
        assert line["difference"] == precise(test.difference, 3)
    clicks = named(make(target="click", source="taobao", variants=()))
    assert not {"list_orders", "choice_shots", "personal_rates"} & set(clicks)
