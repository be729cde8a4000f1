"""Requests of new users: what may be missing, and what is invalid."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paml
from paml.episodes.batches import Loader
from paml.episodes.tasks import Tasks
from paml.evaluation.scoring import predict_rows
from paml.recommend.requests import Rating
from smalltables import write_tables

RunOf = Callable[[str, str], paml.Run]


@pytest.fixture(scope="session")
def context_run(tmp_path_factory: pytest.TempPathFactory) -> paml.Run:
    """Tables with two context fields and a network with hidden layers that predicts classes."""
    folder = write_tables(tmp_path_factory.mktemp("context") / "tables", users=40)
    schema, ratings = folder / "schema.toml", folder / "ratings.csv"
    fields = 'context = { late = { kind = "numeric", column = "when" }, day = { kind = "categorical" } }\n'
    schema.write_text(schema.read_text().replace('time = "when"\n', fields))
    head, *lines = ratings.read_text().splitlines()
    ratings.write_text("\n".join([f"{head},day", *(f"{line},{number % 3}" for number, line in enumerate(lines))]))
    data = paml.prepare("tables", folder, folder.parent / "data", cold_share=1)
    settings = {"hidden": (7, 5), "head": "classes", "inner_steps": 2, "inner_rate": 0.5, "epochs": 1}
    return paml.train(data, "melu", "paper", out=folder.parent / "run", settings=settings)


def test_context_matters_and_may_be_missing(context_run: paml.Run) -> None:
    run, data = context_run, context_run.data()
    tasks = Tasks.of(data, "test")
    rows = data.interactions().collect()
    ids = data.items().select("item").collect()["item"]
    profiles = data.users().select(field.name for field in data.schema.user).collect().to_dicts()
    expected_N, _ = predict_rows(run.ensemble, Loader(data), tasks)
    for number in range(3):
        start, end = tasks.offsets[number], tasks.offsets[number + 1]
        support, query = rows[start : start + tasks.support[number]], rows[start + tasks.support[number] : end]
        ratings = [
            Rating(ids[item], value, {"late": late, "day": day})
            for item, value, late, day in support.select("item", "target", "late", "day").iter_rows()
        ]
        user = run.adapt(profiles[tasks.first + number], ratings)
        found = [
            user.predict([ids[item]], {"late": late, "day": day})[0]
            for item, late, day in query.select("item", "late", "day").iter_rows()
        ]
        base = tasks.offsets[0]
        expected = expected_N[start + tasks.support[number] - base : end - base]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        context = {"late": 1003, "day": "2"}
        whole = {one.item: one.score for one in user.recommend(100, exclude_seen=False, context=context)}
        np.testing.assert_allclose([whole[item] for item in ids], user.predict(ids.to_list(), context), atol=1e-5)
        assert not np.allclose(user.predict(ids.to_list()), user.predict(ids.to_list(), context), atol=1e-5)
        unrated = run.adapt(profiles[tasks.first + number])
        shift = user.predict(["3"], context)[0] - unrated.predict(["3"], context)[0]
        effects = [reason.effect for reason in user.why("3", n=100, context=context)]
        assert sum(effects) == pytest.approx(shift, abs=1e-5)
    with pytest.raises(paml.SettingsError, match="no context field 'lat'; did you mean 'late'"):
        user.predict(["3"], {"lat": 1})


def test_profile_and_ratings_may_be_missing(run: paml.Run) -> None:
    ratings, everything = {"3": 5, "7": 1}, run.predictor.catalogue.ids
    nothing = run.adapt()
    assert nothing.group is None
    assert 1 <= nothing.predict(everything).min() <= nothing.predict(everything).max() <= 5
    # no ratings: theta with the profile; no profile: every field is unknown, as is a value that nobody had
    woman = run.adapt({"gender": "F"})
    assert not np.allclose(woman.predict(everything), nothing.predict(everything), atol=1e-4)
    unknown = run.adapt({"gender": "unheard of", "age": None, "zip": ""}, ratings)
    np.testing.assert_array_equal(unknown.predict(everything), run.adapt(ratings=ratings).predict(everything))
    assert unknown.group is None  # as if nothing was given
    # written as a number or as text
    as_text, as_number = run.adapt({"age": "25"}, ratings), run.adapt({"age": 25.0}, ratings)
    np.testing.assert_array_equal(as_text.predict(everything), as_number.predict(everything))
    assert as_text.group == as_number.group == "minor"
    assert run.predictor.adapt_many([]) == []
    assert [field.name for field in run.predictor.fields] == [field.name for field in run.settings.data_schema.user]
    assert "F" in run.predictor.fields[0].values


def test_an_item_that_nobody_rated_is_described_by_its_content(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "tables", users=40)
    with (folder / "movies.csv").open("a") as file:
        file.write('new,"A film nobody knows",drama|genre1,3.5\nnewer,"Another",drama|genre1,3.5\n')
    data = paml.prepare("tables", folder, tmp_path / "data", cold_share=1)
    run = paml.train(data, "ridge", out=tmp_path / "run", epochs=1, ensemble_size=1)
    assert run.predictor.catalogue[run.predictor.catalogue.row("new")].ratings == 0
    new, newer = run.adapt(ratings={"3": 5}).predict(["new", "newer"])
    assert new == newer


@pytest.mark.parametrize(
    ("profile", "ratings", "message"),
    [
        ({}, {"nowhere": 3}, "there is no item 'nowhere'; expected one of 80 ids"),
        ({}, {"film 27": 3}, r"there is no item 'film 27'; expected an id such as '26' \(Film 27\)"),
        ({}, {"3": 6}, "item '3' has the rating 6; expected a number from 1 to 5"),
        ({}, {"3": 0.99}, "item '3' has the rating 0.99"),
        ({}, {"3": 2.5}, "item '3' has the rating 2.5; expected a number from 1 to 5 in steps of 1"),
        ({}, {"3": 4, "7": 4.999}, "item '7' has the rating 4.999"),
        ({}, {"3": float("nan")}, "item '3' has the rating nan"),
        ({}, {"3": float("-inf")}, "item '3' has the rating -inf"),
        ({}, {"3": 10**400}, "item '3' has the rating 1000"),
        ({}, {"3": "5"}, "item '3' has the rating '5'"),
        ({}, {"3": None}, "item '3' has the rating None"),
        ({}, {"3": True}, "item '3' has the rating True"),
        ({}, {None: 3}, "there is no item 'None'"),
        ({}, {"x" * 1_000_000: 3}, r"there is no item 'x{60}\.\.\. \(1,000,000 characters\)'"),
        ({}, {"🦄 \u202eمرحبا": 3}, "there is no item '🦄"),
        ({}, [Rating("3", 5), Rating("4", 5), Rating("3", 1)], "item '3' is rated twice"),
        ({}, [Rating("3", 5), Rating(3, 1)], "item '3' is rated twice"),  # type: ignore[arg-type]
        ({}, [Rating("3", 5, {"weather": "rain"})], "there is no context field 'weather'; give none"),
        ({"gendr": "F"}, {}, "there is no profile field 'gendr'; did you mean 'gender'?"),
        ({"y" * 1_000_000: "F"}, {}, r"there is no profile field 'y{60}\.\.\. \(1,000,000 characters\)'"),
        ({"gender": ["F"]}, {}, r"'gender' is \['F'\]; expected text or a number"),
        ({"gender": True}, {}, "'gender' is True; expected text or a number"),
    ],
)
def test_invalid_input_is_named(run: paml.Run, profile: Any, ratings: Any, message: str) -> None:
    with pytest.raises(paml.SettingsError, match=message) as raised:
        run.adapt(profile, ratings)
    assert len(str(raised.value)) < 300


def test_errors_have_their_parts(run: paml.Run) -> None:
    with pytest.raises(paml.InputError) as raised:
        run.adapt(ratings={"3": 9})
    wanted = ("value", "9", "a number from 1 to 5 in steps of 1")
    assert (raised.value.field, raised.value.value, raised.value.expected) == wanted
    with pytest.raises(paml.UnknownItem) as unknown:
        run.adapt().predict(["80"])
    assert unknown.value.item == "80"
    with pytest.raises(paml.UnknownField) as field:
        run.adapt({"gendr": "F"})
    assert (field.value.field, field.value.value) == ("gendr", "F")
    assert "gender" in field.value.expected
    for wrong in (0, -1):
        with pytest.raises(paml.SettingsError, match=f"n is {wrong}"):
            run.adapt().recommend(wrong)
    with pytest.raises(paml.UnknownItem):
        run.adapt().recommend(3, among=["3", "nowhere"])


def test_a_click_is_0_or_1(run_of: RunOf) -> None:
    run = run_of("click", "ridge")
    with pytest.raises(paml.InputError, match=r"rating 0\.5; expected 0 or 1"):
        run.adapt(ratings={"3": 0.5})
    assert 0 <= run.adapt(ratings={"3": 1}).recommend(1)[0].score <= 1


def test_a_checked_user_is_looked_up_once(run: paml.Run) -> None:
    encoding = run.predictor.encoding
    checked = encoding.checked(paml.NewUser({"gender": "F"}, [paml.Rating("3", 5)]))
    assert encoding.encode(checked) is checked.encoded
    other = paml.Run.load(run.path).predictor.encoding
    again = other.encode(checked)
    assert again is not checked.encoded, "rows of one run mean nothing to another"
    assert again.index_S.tolist() == checked.encoded.index_S.tolist()
    with pytest.raises(paml.PamlError):
        encoding.checked(paml.NewUser({}, [paml.Rating("3", 77)]))
