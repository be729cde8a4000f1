import pytest

from paml.data.schema import Field, Kind, Schema, Target
from paml.errors import SettingsError
from paml.settings import build


def test_levels_of_a_scale() -> None:
    assert Target(kind="rating", low=1, high=5).levels == [1, 2, 3, 4, 5]
    assert Target(kind="rating", low=0.5, high=2, step=0.5).levels == [0.5, 1, 1.5, 2]
    assert Target(kind="click").levels == [0, 1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "rating", "low": 5, "high": 1}, "low below high"),
        ({"kind": "rating", "low": 1, "high": 5, "step": 3}, "multiple of its step"),
        ({"kind": "click", "low": 1, "high": 2}, "without a scale"),
        ({"kind": "stars"}, "'rating', 'click' or 'choice'"),
        ({"kind": "choice", "low": 1, "high": 5}, "strengths of choices from 1 in steps of 1"),
    ],
)
def test_invalid_targets(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build(Target, values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "a b", "kind": "numeric"}, "letters, digits"),
        ({"name": "../x", "kind": "numeric"}, "letters, digits"),
        ({"name": "target", "kind": "numeric"}, "reserved"),
        ({"name": "a", "kind": "number"}, "categorical"),
        ({"name": "a", "kind": "numeric", "minimum": 2, "maximum": 1}, "minimum not above"),
        ({"name": "a", "kind": "categorical", "pattern": "("}, "regular expression"),
    ],
)
def test_invalid_fields(values: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        build(Field, values)


def test_identifiers_are_not_inputs_and_names_are_unique() -> None:
    title, genre = Field(name="title", kind=Kind.IDENTIFIER), Field(name="genre", kind=Kind.MULTI)
    schema = Schema(user=(), item=(title, genre), target=Target(kind="click"))
    assert schema.features("item") == (genre,)
    with pytest.raises(SettingsError, match="'genre' twice"):
        build(Schema, {"user": [], "item": [genre, genre], "target": {"kind": "click"}})
