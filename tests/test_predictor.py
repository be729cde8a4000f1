"""A trained model in use: it predicts what evaluation predicts, for every method and target, and says what is wrong."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

import paml
from paml.data.batches import Loader
from paml.data.tasks import Tasks
from paml.evaluate import predict_rows
from paml.methods import METHODS
from paml.newcomers import Newcomer, Rating

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
