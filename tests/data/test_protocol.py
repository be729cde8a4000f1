import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from paml.data import protocol
from paml.data.schema import Field, Kind
from paml.errors import SettingsError
from paml.settings import build

GENDER = Field(name="gender", kind=Kind.CATEGORICAL)
AGE = Field(name="age", kind=Kind.CATEGORICAL, minimum=10, maximum=100)
TOWN = Field(name="town", kind=Kind.CATEGORICAL, pattern=r"[a-z ]+")


def people(**columns: list[object]) -> pl.DataFrame:
    count = len(next(iter(columns.values())))
    return pl.DataFrame({"user": [f"u{k}" for k in range(count)], **columns}, strict=False)


def test_cold_users_are_those_with_the_least_rows_in_table_order() -> None:
    users = people(_log=[5, 1, 9, 5, 2])
    kept = protocol.cold_users(users, 0.8)
    assert kept.users["user"].to_list() == ["u0", "u1", "u3", "u4"]
    assert kept.dropped == 1
    assert protocol.cold_users(users, 0.6).users["user"].to_list() == ["u0", "u1", "u4"]  # ties: the first


def test_active_users_stay_and_are_marked() -> None:
    users = people(_log=[5, 1, 9, 5, 2], _training_only=[False] * 5)
    kept = protocol.active_users_train(users, 0.6)
    assert (len(kept.users), kept.dropped) == (5, 0)
    assert kept.users.filter("_training_only")["user"].to_list() == ["u2", "u3"]
    assert not protocol.active_users_train(users, 1.0).users["_training_only"].any()


def test_active_users_are_only_in_training() -> None:
    active_U = np.arange(50) % 5 == 0
    codes_U = protocol.split_cold_users(active_U, (7, 1, 2), 3)
    assert not codes_U[active_U].any()
    assert np.array_equal(codes_U[~active_U], protocol.split_users(40, (7, 1, 2), 3))
    assert np.array_equal(
        protocol.split_cold_users(np.zeros(50, bool), (7, 1, 2), 3), protocol.split_users(50, (7, 1, 2), 3)
    )


def test_eighty_percent_of_movielens_is_4832() -> None:
    assert len(protocol.cold_users(people(_log=list(range(6040))), 0.8).users) == 4832


def test_blank_and_invalid_profiles_are_dropped() -> None:
    users = people(
        gender=["F", None, " ", "M", "M", "M", "F"],
        age=["10", "20", "20", "9", "x", "101", "100"],
        town=["new york"] * 7,
        _without_profile=[False] * 7,
    )
    kept = protocol.valid_profiles(users, [GENDER, AGE, TOWN])
    assert kept.users["user"].to_list() == ["u0", "u6"]
    assert kept.dropped == 5
    garbled = people(gender=["F", "F"], age=["20", "20"], town=["l?n,d", "rome"], _without_profile=[False, False])
    assert protocol.valid_profiles(garbled, [TOWN]).users["user"].to_list() == ["u1"]


def test_too_few_interactions() -> None:
    users = people(_rows=[1, 2, 5, 9], _positives=[1, 2, 1, 2])
    assert protocol.enough_interactions(users, 2, "rows").users["user"].to_list() == ["u1", "u2", "u3"]
    assert protocol.enough_interactions(users, 2, "clicks").users["user"].to_list() == ["u1", "u3"]
    assert protocol.enough_interactions(users, 6, "rows").dropped == 3


@given(st.integers(1, 5000), st.integers(0, 3))
def test_split_is_seven_one_two_within_one_user(count: int, seed: int) -> None:
    sizes = np.bincount(protocol.split_users(count, (7, 1, 2), seed), minlength=3)
    assert sizes.sum() == count
    assert np.all(np.abs(sizes - count * np.array([0.7, 0.1, 0.2])) <= 1)


def test_split_depends_only_on_the_seed() -> None:
    first, again, other = (protocol.split_users(100, (7, 1, 2), seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@given(st.lists(st.integers(2, 3000), min_size=1), st.floats(0.01, 0.99))
def test_support_and_query_are_never_empty(rows: list[int], share: float) -> None:
    counts = protocol.support_counts(np.array(rows), share)
    assert np.all(counts >= 1)
    assert np.all(counts <= np.array(rows) - 1)
    inner = (counts > 1) & (counts < np.array(rows) - 1)
    assert np.all(np.abs(counts - share * np.array(rows))[inner] <= 0.5 + 1e-6)


def test_support_rows_are_rounded_to_the_nearest_number_or_down() -> None:
    rows = np.array([2, 3, 5, 6, 8, 10, 13])
    assert protocol.support_counts(rows, 0.8).tolist() == [1, 2, 4, 5, 6, 8, 10]
    assert protocol.support_counts(rows, 0.8, "down").tolist() == [1, 2, 4, 4, 6, 8, 10]


def test_later_settings_are_written_only_if_they_differ_from_their_default() -> None:
    """Fingerprints of data sets that were prepared before these settings existed stay valid."""
    later = {"cold_rule", "support_rounding"}
    assert not later & set(build(protocol.Protocol, {}).model_dump(mode="json"))
    other = build(protocol.Protocol, {"cold_rule": "last", "support_rounding": "down"})
    assert later <= set(other.model_dump(mode="json"))
    assert build(protocol.Protocol, other.model_dump(mode="json")) == other


def test_common_values_round_up_and_halve_two_valued_fields() -> None:
    users = people(gender=["M", "M", "F", "M"], age=["11", "12", "12", "13"], town=["a", "b", "c", "d"])
    groups = protocol.common_values(users, [GENDER, AGE, TOWN], 0.3)
    assert groups.common == {"gender": ["M"], "age": ["12"], "town": ["a", "b"]}  # 0.3 * 4 rounds up to two
    assert groups.shares == {"gender": 0.75, "age": 0.5, "town": 0.5}


def test_invalid_values_are_not_counted_among_the_common_values() -> None:
    users = people(age=["11", "12", "12", "13", "300", "2", "1", "0"])
    groups = protocol.common_values(users, [AGE], 0.3)
    assert groups.common == {"age": ["12"]}  # one of three valid values; of all seven it would be three
    assert groups.shares == {"age": 0.25}


def test_major_users_have_more_than_two_common_values() -> None:
    users = people(gender=["M", "M", "F"], age=["2", "2", "2"], town=["a", "z", "a"])
    common = {"gender": ["M"], "age": ["2"], "town": ["a"]}
    assert protocol.is_major(users, common, 2).tolist() == [True, False, False]
    assert protocol.is_major(users, common, 1).tolist() == [True, True, True]


@pytest.mark.parametrize("invalid", ["7:1", "a:b:c", "0:1:2", "-1:1:1", "1:nan:1", 5])
def test_invalid_ratio(invalid: object) -> None:
    with pytest.raises(SettingsError, match=r"user_ratio.*7:1:2"):
        build(protocol.Protocol, {"user_ratio": invalid})


def test_ratio_survives_a_round_trip() -> None:
    settings = build(protocol.Protocol, {"user_ratio": "8:1:1"})
    assert build(protocol.Protocol, settings.model_dump(mode="json")) == settings
