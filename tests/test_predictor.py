"""A trained model in use: it predicts what evaluation predicts, for every method and target, and says what is wrong."""

import json
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import paml
from paml.catalogue import Catalogue
from paml.cli import main
from paml.data.batches import Loader
from paml.data.schema import Field, Kind, Schema, Target
from paml.data.tasks import Tasks
from paml.evaluate import predict_rows
from paml.heads import on_scale
from paml.methods import METHODS
from paml.newcomers import Newcomer, Rating
from smalltables import write_tables

Train = Callable[[str, str], paml.Run]


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory, world: paml.PreparedData, click_world: paml.PreparedData
) -> Train:
    """Runs by target and method, each trained once."""
    runs: dict[tuple[str, str], paml.Run] = {}

    def run(target: str, method: str) -> paml.Run:
        if (target, method) not in runs:
            out = tmp_path_factory.mktemp("runs") / f"{target}-{method}"
            data = {"rating": world, "click": click_world}[target]
            runs[target, method] = paml.train(data, method, out=out, epochs=2, members=2)
        return runs[target, method]

    return run


@pytest.fixture(scope="session")
def run(trained: Train) -> paml.Run:
    return trained("rating", "ridge")


def newcomers_of(data: paml.PreparedData, count: int) -> tuple[list[Newcomer], list[list[str]], pl.DataFrame]:
    """Test users as strangers: profile and support ratings as text and numbers, and the items of their query rows."""
    first, end = data.manifest.splits["test"]
    users = data.users().slice(first, min(count, end - first)).collect()
    ids = data.items().select("item").collect()["item"]
    rows = data.interactions().filter(pl.col("user").is_between(first, first + len(users) - 1)).collect()
    profiles = users.select(field.name for field in data.schema.user).to_dicts()
    newcomers, queries = [], []
    for number, profile in enumerate(profiles):
        own = rows.filter(pl.col("user") == first + number).with_columns(
            item=ids.gather(rows.filter(pl.col("user") == first + number)["item"])
        )
        support, query = own.filter(~pl.col("query")), own.filter(pl.col("query"))
        ratings = [Rating(item, value) for item, value in support.select("item", "target").iter_rows()]
        newcomers.append(Newcomer(profile, ratings))
        queries.append(query["item"].to_list())
    return newcomers, queries, users


@pytest.mark.parametrize("target", ["rating", "click"])
@pytest.mark.parametrize("method", METHODS)
def test_predictions_are_those_of_evaluation(target: str, method: str, trained: Train) -> None:
    run = trained(target, method)
    data = run.data()
    newcomers, queries, users = newcomers_of(data, 20)
    tasks = Tasks.of(data, "test").part(0, len(users))
    expected_N, rate_U = predict_rows(run.ensemble, Loader(data), tasks)
    expected_Q = expected_N[tasks.query_mask()]
    together = run.predictor.adapt_many(newcomers, score=True)
    alone = [run.adapt(newcomer.profile, newcomer.ratings) for newcomer in newcomers]
    for adapted in (together, alone):
        found_Q = np.concatenate([user.predict(items) for user, items in zip(adapted, queries, strict=True)])
        np.testing.assert_allclose(found_Q, expected_Q, atol=1e-5)
        np.testing.assert_allclose([user.rate for user in adapted], rate_U, atol=1e-6)
        assert [user.group for user in adapted] == users["group"].to_list()


def test_recommendations_are_the_highest_scores(run: paml.Run) -> None:
    ratings = {"3": 5, "7": 1, "11": 4}
    user = run.adapt({"gender": "F", "age": "25"}, ratings)
    items = [item for item in run.predictor.catalogue.ids if item not in ratings]
    order = np.argsort(-user.predict(items), kind="stable")
    best = user.recommend(10)
    assert [one.item for one in best] == [items[k] for k in order[:10]]
    assert best[0].title.startswith("Film ")
    assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
    assert len(user.recommend(10_000)) == len(items)
    assert len(user.recommend(10_000, exclude_seen=False)) == len(run.predictor.catalogue)
    assert {one.item for one in user.recommend(5, among=["3", "20", "21"])} == {"20", "21"}


@pytest.mark.parametrize("target", ["rating", "click"])
@pytest.mark.parametrize("method", METHODS)
def test_reasons_sum_to_what_the_ratings_changed(target: str, method: str, trained: Train) -> None:
    run = trained(target, method)
    newcomers, queries, _ = newcomers_of(run.data(), 3)
    for newcomer, items in zip(newcomers, queries, strict=True):
        user, stranger = run.adapt(newcomer.profile, newcomer.ratings), run.adapt(newcomer.profile)
        shift = user.predict(items) - stranger.predict(items)
        reasons = user.reasons(items, n=len(newcomer.ratings))
        np.testing.assert_allclose([sum(reason.effect for reason in some) for some in reasons], shift, atol=2e-5)
        sizes = [abs(reason.effect) for reason in reasons[0]]
        assert sizes == sorted(sizes, reverse=True)
        alone = user.why(items[0], n=2)
        np.testing.assert_allclose(
            [reason.effect for reason in alone], [reason.effect for reason in reasons[0][:2]], atol=1e-5
        )
        assert stranger.why(items[0]) == []


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


def test_context_counts_and_may_be_missing(context_run: paml.Run) -> None:
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
        stranger = run.adapt(profiles[tasks.first + number])
        shift = user.predict(["3"], context)[0] - stranger.predict(["3"], context)[0]
        effects = [reason.effect for reason in user.why("3", n=100, context=context)]
        assert sum(effects) == pytest.approx(shift, abs=1e-5)
    with pytest.raises(paml.SettingsError, match="no context field 'lat'; did you mean 'late'"):
        user.predict(["3"], {"lat": 1})


def test_the_ladder_of_what_is_missing(run: paml.Run) -> None:
    ratings, everything = {"3": 5, "7": 1}, run.predictor.catalogue.ids
    nothing = run.adapt()
    assert nothing.group is None
    assert 1 <= nothing.predict(everything).min() <= nothing.predict(everything).max() <= 5
    # no ratings: theta with the profile; no profile: every field is unknown, and so is a value nobody had
    woman = run.adapt({"gender": "F"})
    assert not np.allclose(woman.predict(everything), nothing.predict(everything), atol=1e-4)
    stranger = run.adapt({"gender": "unheard of", "age": None, "zip": ""}, ratings)
    np.testing.assert_array_equal(stranger.predict(everything), run.adapt(ratings=ratings).predict(everything))
    # written as a number or as text
    as_text, as_number = run.adapt({"age": "25"}, ratings), run.adapt({"age": 25.0}, ratings)
    np.testing.assert_array_equal(as_text.predict(everything), as_number.predict(everything))
    assert as_text.group == as_number.group == "minor"
    assert run.predictor.adapt_many([]) == []
    assert [field.name for field in run.predictor.fields] == [field.name for field in run.settings.fields.user]
    assert "F" in run.predictor.fields[0].values


def test_an_item_nobody_rated_is_what_its_content_says(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "tables", users=40)
    with (folder / "movies.csv").open("a") as file:
        file.write('new,"A film nobody knows",drama|genre1,3.5\nnewer,"Another",drama|genre1,3.5\n')
    data = paml.prepare("tables", folder, tmp_path / "data", cold_share=1)
    run = paml.train(data, "ridge", out=tmp_path / "run", epochs=1, members=1)
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
def test_what_cannot_be_meant_is_named(run: paml.Run, profile: Any, ratings: Any, message: str) -> None:
    with pytest.raises(paml.SettingsError, match=message) as raised:
        run.adapt(profile, ratings)
    assert len(str(raised.value)) < 300


def test_errors_have_their_parts(run: paml.Run) -> None:
    with pytest.raises(paml.InputError) as raised:
        run.adapt(ratings={"3": 9})
    assert (raised.value.field, raised.value.value, raised.value.expected) == ("value", "9", "a number from 1 to 5")
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


def test_a_click_is_0_or_1(trained: Train) -> None:
    run = trained("click", "ridge")
    with pytest.raises(paml.InputError, match=r"rating 0\.5; expected 0 or 1"):
        run.adapt(ratings={"3": 0.5})
    assert 0 <= run.adapt(ratings={"3": 1}).recommend(1)[0].score <= 1


@pytest.mark.parametrize("method", ["ridge", "at_paml"])
def test_threads_share_a_predictor(method: str, trained: Train) -> None:
    run = trained("rating", method)
    newcomers, _, _ = newcomers_of(run.data(), 24)
    predictor = paml.load(run.path).predictor
    before = {name: tensor.clone() for name, tensor in run.ensemble.state_dict().items()}

    def answer(newcomer: Newcomer) -> tuple[np.ndarray, list[str]]:
        user = predictor.adapt(newcomer.profile, newcomer.ratings)
        return user.scores(), [reason.item for reason in user.why("3", n=2)]

    alone = [answer(newcomer) for newcomer in newcomers]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for (scores, why), (expected, because) in zip(pool.map(answer, newcomers), alone, strict=True):
                np.testing.assert_array_equal(scores, expected)
                assert why == because
    for name, tensor in predictor.members[0].learner.state_dict().items():
        assert torch.equal(tensor, before[f"_members.0.{name}"])


def test_standing_among_the_training_users(run: paml.Run, world: paml.PreparedData) -> None:
    first, end = world.manifest.splits["train"]
    newcomers, _, _ = newcomers_of(world, 30)
    users = run.predictor.adapt_many(newcomers)
    for user in users:
        standing = user.standing()
        assert len(standing.edges) == len(standing.major) + 1 == len(standing.minor) + 1
        assert sum(standing.major) + sum(standing.minor) == end - first
        assert sum(standing.major) == world.manifest.major["train"]
        assert sum(standing.similar.values()) == 10
        assert standing.rate == user.rate
    by_rate = sorted(users, key=lambda user: user.rate)
    percentiles = [user.standing().percentile for user in by_rate]
    assert percentiles == sorted(percentiles)
    assert 0 <= percentiles[0] < percentiles[-1] <= 100
    stored = pl.read_parquet(run.path / "population.parquet")
    assert stored.columns == ["group", "rate", "h"]


def test_a_fixed_rate_has_a_standing(trained: Train) -> None:
    standing = trained("rating", "melu").adapt().standing()
    assert standing.percentile == 50
    assert sum(standing.major) + sum(standing.minor) == len(trained("rating", "melu").predictor.population.rate_P)


def test_search_finds_titles_and_ids() -> None:
    table = pl.DataFrame(
        {
            "item": ["1", "2", "toy", "4"],
            "title": ["Toy Story (1995)", "Amélie", "Something else", None],
            "_ratings": [5, 9, 1, 0],
            "_share": pl.Series([0.5, 0.9, 0.1, 0.0], dtype=pl.Float32),
            "_vector": pl.Series([[0.0]] * 4, dtype=pl.Array(pl.Float32, 1)),
        }
    )
    schema = Schema(
        user=(), item=(Field(name="title", kind=Kind.IDENTIFIER),), target=Target(kind="rating", low=1, high=5)
    )
    catalogue = Catalogue(table, schema)

    def found(text: str, limit: int = 20) -> list[str]:
        return [one.item for one in catalogue.search(text, limit)]

    assert found("toy sto") == found("STORY toy") == ["1"]
    assert found("amelie") == found("AMÉLIE") == found("Ame\u0301lie") == ["2"]
    assert found("toy") == ["toy", "1"]  # the very id first
    assert found("") == ["2", "1", "toy", "4"]  # best known first
    assert found("", 2) == ["2", "1"]
    assert found("(.*") == found("z" * 1_000_000) == []
    assert catalogue.title("4") == "4"
    with pytest.raises(paml.SettingsError, match="limit 0"):
        catalogue.search("toy", 0)


@pytest.mark.parametrize("name", ["catalogue.parquet", "population.parquet", "vocab.json", "weights.safetensors"])
def test_an_incomplete_or_damaged_run_is_refused(name: str, run: paml.Run, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    (copy / name).write_bytes(b"PAR1")
    with pytest.raises(paml.FormatError, match=name.partition(".")[0]):
        paml.load(copy).adapt()
    (copy / name).unlink()
    with pytest.raises(paml.FormatError, match=r"is incomplete|has not finished"):
        paml.load(copy)


def test_a_run_of_another_version_or_with_other_items_is_refused(run: paml.Run, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    items = pl.read_parquet(copy / "catalogue.parquet")
    items.head(3).write_parquet(copy / "catalogue.parquet")
    with pytest.raises(paml.FormatError, match="has 3 items, the run 80; train again"):
        paml.load(copy).adapt()
    items.drop("genre").write_parquet(copy / "catalogue.parquet")
    with pytest.raises(paml.FormatError, match="has no column 'genre'"):
        paml.load(copy).adapt()
    settings = copy / "settings.json"
    settings.write_text(settings.read_text().replace('"format": 3', '"format": 2'))
    with pytest.raises(paml.FormatError, match="is a run of format 2, expected 3; train again"):
        paml.load(copy)


def test_the_data_set_is_not_needed(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=100, items=30)
    run = paml.train(data, "ridge", out=tmp_path / "run", epochs=1, members=1)
    shutil.rmtree(data.path)
    assert len(paml.load(run.path).adapt({"gender": "F"}, {"3": 5}).recommend(5)) == 5


def test_recommend_on_the_command_line(
    run: paml.Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["paml", "recommend", str(run.path), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return (ended.value.code, *capsys.readouterr())

    monkeypatch.setattr(signal, "signal", lambda *_: None)  # they are this process's own
    options = ["--profile", "gender=F", "--profile", "age=25", "--rate", "3=5", "--rate", "7=1", "-n", 4]
    user = run.adapt({"gender": "F", "age": "25"}, {"3": 5, "7": 1})
    code, shown, _ = call(*options, "--json", "--why")
    answer = json.loads(shown)
    assert (code, answer["rate"], answer["group"]) == (0, pytest.approx(user.rate), user.group)
    assert [entry["item"] for entry in answer["items"]] == [one.item for one in user.recommend(4)]
    first = answer["items"][0]
    assert first["because"][0]["effect"] == pytest.approx(user.why(first["item"])[0].effect, abs=1e-5)
    _, shown, _ = call(*options, "--why")
    assert "because" in shown
    assert user.recommend(1)[0].title in shown
    for wrong, message in [
        (("--rate", "3"), "error: --rate '3' is not a rating; write it as ITEM=SCORE"),
        (("--rate", "3=nan"), "error: item '3' has the rating nan; expected a number from 1 to 5"),
        (("--rate", "3=4", "--rate", "3=5"), "error: item '3' is rated twice"),
        (("--profile", "height=3"), "error: there is no profile field 'height'"),
    ]:
        code, shown, complaint = call(*wrong)
        assert (code, shown) == (1, "")
        assert complaint.startswith(message)


def test_in_one_step_a_reason_is_what_the_rating_does_alone(world: paml.PreparedData, tmp_path: Path) -> None:
    """The loss is a mean over n rows, so that each alone moves a score n times as far as in company."""
    settings = {"hidden": (), "embedding_size": 4, "inner_steps": 1, "inner_rate": 0.05, "epochs": 1}
    run = paml.train(world, "melu", "paper", out=tmp_path / "run", settings=settings)
    profile, ratings = {"gender": "F"}, {"3": 5, "7": 1, "11": 4}
    before = run.adapt(profile).predict(["20"])[0]
    reasons = {reason.item: reason.effect for reason in run.adapt(profile, ratings).why("20")}
    for item, value in ratings.items():
        alone = run.adapt(profile, {item: value}).predict(["20"])[0] - before
        assert reasons[item] == pytest.approx(alone / 3, abs=1e-5)
    assert max(map(abs, reasons.values())) > 0.01


def test_large_catalogues_are_scored_in_stretches(run: paml.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    newcomers, queries, _ = newcomers_of(run.data(), 5)
    whole = [user.scores() for user in run.predictor.adapt_many(newcomers, score=True)]
    some = [user.predict(items) for user, items in zip(run.predictor.adapt_many(newcomers), queries, strict=True)]
    monkeypatch.setattr("paml.predictor.CELLS_AT_ONCE", 500)
    users = run.predictor.adapt_many(newcomers, score=True)
    np.testing.assert_allclose([user.scores() for user in users], whole, atol=1e-6)
    for user, items, expected in zip(run.predictor.adapt_many(newcomers), queries, some, strict=True):
        np.testing.assert_allclose(user.predict(items), expected, atol=1e-6)
    assert users[0].predict([]).shape == (0,)


def test_pressing_onto_the_scale_is_the_same_in_use() -> None:
    out = torch.linspace(-10, 20, 10_001)
    in_training = on_scale(out, 1.0, 5.0)
    with torch.no_grad():
        assert torch.equal(on_scale(out, 1.0, 5.0), in_training)
    with torch.inference_mode():
        assert torch.equal(on_scale(out[4500:4600], 1.0, 5.0), in_training[4500:4600])
