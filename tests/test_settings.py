import pytest
from pydantic import Field

from paml.errors import PamlError, SettingsError, nearest
from paml.settings import Settings, build, build_all, parse_assignments


class Oven(Settings):
    heat: int = Field(200, ge=0, description="degrees")


class Table(Settings):
    legs: int = Field(4, description="number of legs")


def test_values_reach_the_class_that_owns_them() -> None:
    oven, table = build_all([Oven, Table], {"legs": "3"})
    assert (oven, table) == (Oven(heat=200), Table(legs=3))


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="unknown setting 'leg'; did you mean 'legs'"):
        build_all([Oven, Table], {"leg": 3})
    with pytest.raises(SettingsError, match="unknown setting 'haet'; did you mean 'heat'"):
        build(Oven, {"haet": 3})


def test_wrong_value_names_key_and_expectation() -> None:
    with pytest.raises(SettingsError, match="setting 'heat' is '-5'; expected greater than or equal to 0"):
        build(Oven, {"heat": "-5"})


def test_assignments() -> None:
    assert parse_assignments(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(SettingsError):
            parse_assignments(wrong)


def test_error_says_what_where_remedy() -> None:
    assert str(PamlError("is empty", where="a.csv", remedy="fill it")) == "a.csv: is empty; fill it"
    named = PamlError("exists", remedy="choose another folder", argument="out")
    assert (str(named), named.argument) == ("exists; choose another folder", "out")
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
