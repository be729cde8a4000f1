"""Users' rates: how large, how different, at the bound or not, and by group."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.stats import ttest_ind

from paml.analysis.plan import Entry, RateFacts
from paml.analysis.rates import not_personal, rates_of
from paml.analysis.results import Rates
from paml.analysis.summarise import summarise_comparison
from report.comparison import QUICK, write_comparison

PAML = Entry(name="paml", label="PAML", kind="method", method="paml", rate=RateFacts(label="learning rate", bound=0.5))


def rows_of(rate_SU: np.ndarray, name: str = "paml") -> pl.DataFrame:
    """Every third user is a minor user."""
    seeds, users = rate_SU.shape
    return pl.DataFrame(
        {
            "method": [name] * (seeds * users),
            "seed": np.repeat(np.arange(seeds), users),
            "user": np.tile([f"u{k:03}" for k in range(users)], seeds),
            "group": np.tile(np.where(np.arange(users) % 3 == 0, "minor", "major"), seeds),
            "rate": rate_SU.ravel(),
        }
    )


def found_in(rate_SU: np.ndarray, entry: Entry = PAML) -> Rates:
    found = rates_of(rows_of(rate_SU), entry, QUICK)
    assert found is not None
    return found


def test_by_hand() -> None:
    rate_SU = np.random.default_rng(0).uniform(0.1, 0.5, (1, 90))
    rate_SU[0, ::3] += 0.1
    rate_SU[0, :9] = 0.4951
    minor_U = np.arange(90) % 3 == 0
    found = found_in(rate_SU)
    assert (found.mean, found.deviation) == pytest.approx((rate_SU.mean(), rate_SU[0].std(ddof=1)))
    assert (found.bound, found.at_bound) == (0.5, pytest.approx((rate_SU >= 0.495).mean()))
    expected = ttest_ind(rate_SU[0, minor_U], rate_SU[0, ~minor_U], equal_var=False)
    assert found.gap.welch_p == pytest.approx(expected.pvalue)
    assert found.gap.difference == pytest.approx(rate_SU[0, minor_U].mean() - rate_SU[0, ~minor_U].mean())
    assert found.gap_by_seed == pytest.approx([found.gap.difference])


def test_the_spread_is_between_users_and_not_between_seeds() -> None:
    rate_SU = np.full((2, 30), 0.2) + np.array([[0.0], [0.1]])
    rate_SU[:, ::2] += 0.001
    found = found_in(rate_SU)
    assert found.mean == pytest.approx(0.2505)
    assert found.deviation == pytest.approx(rate_SU[0].std(ddof=1))
    assert found.at_bound == 0


@pytest.mark.parametrize(
    ("rate_SU", "said"),
    [
        (np.full((2, 30), 0.4999), "100.0 % of the users are within 1 % of the largest one, 0.5"),
        (
            np.tile(0.3 + 0.001 * (np.arange(30) % 2), (2, 1)),
            "its standard deviation between users is 0.17 %",
        ),
        (np.linspace(0.494, 0.4999, 60).reshape(2, 30), "of its mean, and 8"),
        (np.linspace(0.1, 0.5, 60).reshape(2, 30), None),
    ],
    ids=["bound", "alike", "both", "personal"],
)
def test_whether_rates_are_personal_is_said(rate_SU: np.ndarray, said: str | None) -> None:
    sentences = not_personal({"paml": found_in(rate_SU)}, {"paml": "PAML"})
    if said is None:
        assert sentences == []
    else:
        assert sentences[0].startswith("The personal learning rate is not at work with PAML: ")
        assert said in sentences[0]


def test_without_facts_rates_are_shown_if_they_differ() -> None:
    old = Entry(name="paml", label="PAML", kind="method", method="paml")
    same, other = np.full((2, 6), 0.01), np.linspace(0.01, 0.02, 12).reshape(2, 6)
    assert rates_of(rows_of(same), old, QUICK) is None
    found = found_in(other, old)
    assert (found.label, found.bound, found.at_bound) == ("learning rate", None, None)
    assert rates_of(rows_of(other).with_columns(rate=pl.lit(None, pl.Float64)), PAML, QUICK) is None
    assert rates_of(rows_of(other).drop("rate"), PAML, QUICK) is None
    assert rates_of(rows_of(other), PAML.model_copy(update={"name": "reg_paml"}), QUICK) is None


def test_bounds_come_from_the_plan(tmp_path: Path) -> None:
    methods = ["melu", "paml", "at_paml", "ridge"]
    folder = write_comparison(tmp_path, methods=methods, variants=("paml rate_scale=0.3",))
    found = summarise_comparison(folder, resamples=QUICK)
    assert {name: (rates.label, rates.bound) for name, rates in found.rates.items()} == {
        "paml": ("learning rate", 0.5),
        "at_paml": ("learning rate", 1.0),
        "ridge": ("prior variance", 0.1),
        "paml rate_scale=0.3": ("learning rate", 0.3),
    }
    assert found.rates["paml"].gap.difference == pytest.approx(0.1, abs=0.03)
    said = [line for line in found.verdict if "not at work" in line]  # variants are left to the table
    assert len(said) == 1
    assert said[0].startswith("The personal prior variance is not at work with closed-form ridge: 100.0 %")
