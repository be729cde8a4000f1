"""Tables of the documents that repeat what the code says: they say the same."""

import re
import tomllib

import pytest

from docs.examples import BLOCKS, PROJECT
from paml.baselines.registry import BASELINES
from paml.evaluation.metrics import METRICS, Metric
from paml.recommend.preference import orders
from paml.training.recipe import SHARED
from paml.training.sizing import EMBEDDED, RULES


def text_of(name: str) -> str:
    return (PROJECT / "docs" / name).read_text()


@pytest.mark.parametrize("name", RULES)
def test_the_table_of_rules_has_the_numbers_of_the_embedded_data(name: str) -> None:
    section = text_of("training.md").split("### Settings by rule", 1)[1].split("\n### ")[0]
    (line,) = re.findall(rf"^\| `{name}` \|.*$", section, flags=re.MULTILINE)
    value = RULES[name](EMBEDDED)
    assert line.split("|")[-2].strip() == (str(value) if value or value == 0 else "none")


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_is_described(name: str) -> None:
    assert f"`{name}`" in text_of("compare.md")
    assert not BASELINES[name].ranks or f"| `{name}` |" in text_of("ranking.md")


def test_every_metric_of_lists_is_described() -> None:
    for name in (name for name, metric in METRICS.items() if not isinstance(metric, Metric)):
        assert f"`{name}`" in text_of("compare.md")
        assert f"`{name}`" in text_of("ranking.md")


def test_what_lists_are_ordered_by_is_described() -> None:
    for by in orders(rates=True, chooses=True):
        assert f"| `{by}` |" in text_of("ranking.md")
        assert f"`{by}`" in text_of("serve.md")
        assert f"`{by}`" in text_of("cli.md")


def test_settings_of_both_parts_are_named() -> None:
    section = text_of("training.md").split("### Settings of the choice part", 1)[1]
    (sentence,) = re.findall(r"are replaced in both: ([^.]*)\.", section)
    assert set(re.findall(r"`(\w+)`", sentence)) == set(SHARED)


@pytest.mark.parametrize("name", ["method", "baseline", "source", "metric"])
def test_the_example_package_is_shown_as_it_is(name: str) -> None:
    assert (PROJECT / "examples" / "paml_example" / "paml_example" / f"{name}.py").read_text() in text_of(
        "extending.md"
    )


def test_the_example_package_declares_what_is_shown() -> None:
    declared = tomllib.loads((PROJECT / "examples" / "paml_example" / "pyproject.toml").read_text())
    (block,) = (one for one in BLOCKS if one.document == "docs/extending.md" and one.language == "toml")
    assert tomllib.loads(block.text)["project"]["entry-points"] == declared["project"]["entry-points"]
