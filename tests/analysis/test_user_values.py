"""Values by user, from which statistics are made: whose they are, and what their mean is."""

import polars as pl
import pytest

from paml.analysis import comparisons as statistics


def test_a_users_group_and_values_belong_to_the_user() -> None:
    rows = pl.DataFrame(
        {
            "method": ["a"] * 4 + ["b"] * 4,
            "seed": [0, 1, 0, 1] * 2,
            "user": ["u", "u", "v", "v"] * 2,
            "group": ["major", "major", "minor", "minor"] * 2,
            "mse": [1.0, 3.0, 5.0, None, 0.0, 1.0, 4.0, 2.0],
        }
    )
    users = statistics.per_user(statistics.differences(rows, "a", "b", "mse"))
    assert users.rows() == [("u", "major", 1.5), ("v", "minor", 1.0)]
    test = statistics.groups_test(rows, "a", "mse")
    assert (test.left, test.right, test.p_value, test.left_users, test.right_users) == (2.0, 5.0, None, 1, 1)
    found = statistics.improvement(rows, "b", "a", "mse", "lower")
    assert (found.test.left, found.test.right, found.test.left_users, found.test.right_users) == (1.75, 3.0, 2, 2)
    assert not found.star  # better, but far from certain


def test_values_balanced_over_one_seed_are_the_users_own() -> None:
    values = pl.DataFrame({"user": ["u", "v", "w"], "seed": [0] * 3, "group": ["major"] * 3, "value": [1.0, 2.0, 6.0]})
    assert sorted(statistics.balanced(values)) == pytest.approx([1.0, 2.0, 6.0])


def test_groups_have_their_own_users() -> None:
    users = pl.DataFrame({"user": ["u", "v", "w"], "group": ["major", "minor", "minor"], "value": [1.0, None, 6.0]})
    major, minor = statistics.by_group(users)
    assert (major.tolist(), minor.tolist()) == ([1.0], [6.0])
