"""A trained model in use: it predicts what evaluation predicts, for every method and target; clear errors."""

import json
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from benchmarks.attack.forge import forge_run

import paml
from paml.cli import main
from paml.engine.heads import on_scale
from paml.episodes.batches import Loader
from paml.episodes.tasks import Known, Tasks
from paml.errors import InputError, SettingsError
from paml.evaluation.scoring import predict_rows
from paml.methods.registry import METHODS
from paml.recommend.preference import By
from paml.recommend.rate_profile import ReferenceUsers
from paml.recommend.requests import NewUser, Rating

RunOf = Callable[[str, str], paml.Run]


def new_users_of(data: paml.Dataset, count: int) -> tuple[list[NewUser], list[list[str]], pl.DataFrame]:
    """Test users as new users: profile and support ratings as text and numbers, and the items of their query rows."""
    first, end = data.manifest.splits["test"]
    users = data.users().slice(first, min(count, end - first)).collect()
    ids = data.items().select("item").collect()["item"]
    rows = data.interactions().filter(pl.col("user").is_between(first, first + len(users) - 1)).collect()
    profiles = users.select(field.name for field in data.schema.user).to_dicts()
    new_users, queries = [], []
    for number, profile in enumerate(profiles):
        own = rows.filter(pl.col("user") == first + number).with_columns(
            item=ids.gather(rows.filter(pl.col("user") == first + number)["item"])
        )
        support, query = own.filter(~pl.col("query")), own.filter(pl.col("query"))
        ratings = [Rating(item, value) for item, value in support.select("item", "target").iter_rows()]
        new_users.append(NewUser(profile, ratings))
        queries.append(query["item"].to_list())
    return new_users, queries, users


@pytest.mark.parametrize("target", ["rating", "click"])
@pytest.mark.parametrize("method", METHODS)
def test_predictions_are_those_of_evaluation(target: str, method: str, run_of: RunOf) -> None:
    run = run_of(target, method)
    data = run.data()
    new_users, queries, users = new_users_of(data, 20)
    tasks = Tasks.of(data, "test").part(0, len(users))
    expected_N, rate_U = predict_rows(run.ensemble, Loader(data), tasks)
    expected_Q = expected_N[tasks.query_mask()]
    together = run.predictor.adapt_many(new_users, score=True)
    alone = [run.adapt(new_user.profile, new_user.ratings) for new_user in new_users]
    for adapted in (together, alone):
        found_Q = np.concatenate([user.predict(items) for user, items in zip(adapted, queries, strict=True)])
        np.testing.assert_allclose(found_Q, expected_Q, atol=1e-5)
        np.testing.assert_allclose([user.rate for user in adapted], rate_U, atol=1e-6)
        assert [user.group for user in adapted] == users["group"].to_list()


@pytest.mark.parametrize("method", ["melu", "ridge"])
@pytest.mark.parametrize("looked_up", [False, True])
def test_affinity_reaches_predictions_and_reasons(
    method: str, looked_up: bool, world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the affinity of all items is materialised or looked up."""
    monkeypatch.setattr("paml.network.affinity.Affinity.is_looked_up", lambda affinity, items: looked_up)
    run = paml.train(world, method, out=tmp_path / "run", epochs=1, ensemble_size=4, affinity_fields="director,genre")
    new_users, queries, users = new_users_of(world, 4)
    tasks = Tasks.of(world, "test").part(0, len(users))
    expected_N, _ = predict_rows(run.ensemble, Loader(world, run.ensemble.inputs), tasks)
    adapted = [run.adapt(new_user.profile, new_user.ratings) for new_user in new_users]
    found_Q = np.concatenate([user.predict(items) for user, items in zip(adapted, queries, strict=True)])
    np.testing.assert_allclose(found_Q, expected_N[tasks.query_mask()], atol=1e-5)
    for user, items in zip(adapted, queries, strict=True):
        shift = user.predict(items) - run.adapt(user.new_user.profile).predict(items)
        reasons = user.reasons(items, n=len(user.new_user.ratings), by="rating")
        np.testing.assert_allclose([sum(reason.effect for reason in some) for some in reasons], shift, atol=2e-5)
        assert user.next_question() is not None


@pytest.mark.parametrize("by", ["preference", "choice", "rating"])
def test_recommendations_are_the_highest_scores(run: paml.Run, by: By) -> None:
    ratings = {"3": 5, "7": 1, "11": 4}
    user = run.adapt({"gender": "F", "age": "25"}, ratings)
    items = [item for item in run.predictor.catalogue.ids if item not in ratings]
    order = np.argsort(-user.scores(by=by)[run.predictor.catalogue.rows(items)], kind="stable")
    best = user.recommend(10, by=by)
    assert [one.item for one in best] == [items[k] for k in order[:10]]
    assert [one.rating for one in best] == pytest.approx(user.predict([one.item for one in best]).tolist())
    assert sum(np.exp(user.scores(by="choice"))) == pytest.approx(1.0, abs=1e-4)
    assert best[0].chance == pytest.approx(np.exp(user.scores(by="choice"))[run.predictor.catalogue.row(best[0].item)])
    assert user.recommend(3) == user.recommend(3, by="preference")
    assert best[0].title.startswith("Film ")
    assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
    assert len(user.recommend(10_000)) == len(items)
    assert len(user.recommend(10_000, exclude_seen=False)) == len(run.predictor.catalogue)
    assert {one.item for one in user.recommend(5, among=["3", "20", "21"])} == {"20", "21"}


@pytest.mark.parametrize("method", METHODS)
def test_lists_of_choices_are_those_of_evaluation(method: str, run_of: RunOf) -> None:
    run = run_of("choice", method)
    data = run.data()
    new_users, _, users = new_users_of(data, 10)
    batch = next(Tasks.of(data, "test").part(0, len(users)).stored(len(users)))
    for by in ("preference", "choice"):
        expected_BI = run.rank(data, by)(Known(batch.user_B, batch.support))[np.argsort(batch.user_B)]
        found = [user.scores(by=by) for user in run.predictor.adapt_many(new_users)]
        expected = (expected_BI if by == "preference" else torch.log_softmax(expected_BI, dim=1)).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4)
    with pytest.raises(SettingsError, match="only ranks and predicts no ratings"):
        run.adapt().predict(["3"])


@pytest.mark.parametrize("value", [0, 0.5, 3, "x", float("nan")])
def test_strengths_that_no_choice_has_are_refused(value: object, run_of: RunOf) -> None:
    run = run_of("choice", "melu")
    assert run.settings.data_schema.target.high == 2
    with pytest.raises(InputError, match=r"item '3' has the strength .*; expected a number from 1 to 2"):
        run.adapt(ratings=[Rating("3", value)])  # type: ignore[arg-type]
    assert run.adapt(ratings={"3": 2}).recommend(1)


@pytest.mark.parametrize("target", ["rating", "click", "choice"])
@pytest.mark.parametrize("method", METHODS)
def test_reasons_sum_to_what_the_ratings_changed(target: str, method: str, run_of: RunOf) -> None:
    run = run_of(target, method)
    new_users, queries, _ = new_users_of(run.data(), 3)
    for new_user, items in zip(new_users, queries, strict=True):
        user, unrated = run.adapt(new_user.profile, new_user.ratings), run.adapt(new_user.profile)
        rows = run.predictor.catalogue.rows(items)
        for by in run.predictor.orders:
            shift = user.scores(by=by)[rows] - unrated.scores(by=by)[rows]
            reasons = user.reasons(items, n=len(new_user.ratings), by=by)
            np.testing.assert_allclose([sum(reason.effect for reason in some) for some in reasons], shift, atol=5e-5)
        sizes = [abs(reason.effect) for reason in reasons[0]]
        assert sizes == sorted(sizes, reverse=True)
        alone = user.why(items[0], n=2, by=by)
        np.testing.assert_allclose(
            [reason.effect for reason in alone], [reason.effect for reason in reasons[0][:2]], atol=1e-5
        )
        assert unrated.why(items[0]) == []


@pytest.mark.parametrize("method", ["ridge", "at_paml"])
def test_threads_share_a_predictor(method: str, run_of: RunOf) -> None:
    run = run_of("rating", method)
    new_users, _, _ = new_users_of(run.data(), 24)
    predictor = paml.load(run.path).predictor
    before = {name: tensor.clone() for name, tensor in run.ensemble.state_dict().items()}

    def answer(new_user: NewUser) -> tuple[np.ndarray, list[str]]:
        user = predictor.adapt(new_user.profile, new_user.ratings)
        return user.scores(), [reason.item for reason in user.why("3", n=2)]

    alone = [answer(new_user) for new_user in new_users]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for (scores, why), (expected, because) in zip(pool.map(answer, new_users), alone, strict=True):
                np.testing.assert_array_equal(scores, expected)
                assert why == because
    for name, tensor in predictor.members[0].learner.state_dict().items():
        assert torch.equal(tensor, before[f"_members.0.{name}"])


@pytest.mark.parametrize("rates", [[0.1], [0.1] * 5, [0.1, 0.1 + 1e-8, 0.1 - 1e-8], [0.0, 0.0], [0.2, 0.1, 0.4]])
def test_rates_that_hardly_differ_have_a_histogram(rates: list[float]) -> None:
    rate_P = np.array(rates, dtype=np.float32)
    sample = ReferenceUsers(np.arange(len(rates)) % 2 == 0, rate_P, np.zeros((len(rates), 2), dtype=np.float32))
    found = sample.rate_profile(0.1, np.zeros(2, dtype=np.float32))
    assert sum(found.major) + sum(found.minor) == len(rates)
    assert all(low < high for low, high in pairwise(found.edges))


def test_rate_profiles_among_the_training_users(run: paml.Run, world: paml.Dataset) -> None:
    first, end = world.manifest.splits["train"]
    new_users, _, _ = new_users_of(world, 30)
    users = run.predictor.adapt_many(new_users)
    for user in users:
        found = user.rate_profile()
        assert len(found.edges) == len(found.major) + 1 == len(found.minor) + 1
        assert sum(found.major) + sum(found.minor) == end - first
        assert sum(found.major) == world.manifest.major["train"]
        assert sum(found.similar.values()) == 10
        assert found.rate == user.rate
    by_rate = sorted(users, key=lambda user: user.rate)
    percentiles = [user.rate_profile().percentile for user in by_rate]
    assert percentiles == sorted(percentiles)
    assert 0 <= percentiles[0] < percentiles[-1] <= 100
    stored = pl.read_parquet(run.path / "reference_users.parquet")
    assert stored.columns == ["group", "rate", "h"]


def test_a_fixed_rate_has_a_profile(run_of: RunOf) -> None:
    found = run_of("rating", "melu").adapt().rate_profile()
    assert found.percentile == 50
    assert sum(found.major) + sum(found.minor) == len(run_of("rating", "melu").predictor.reference_users.rate_P)


@pytest.mark.parametrize("name", ["catalogue.parquet", "reference_users.parquet", "vocab.json", "weights.safetensors"])
def test_an_incomplete_or_damaged_run_is_refused(name: str, run: paml.Run, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    (copy / name).write_bytes(b"PAR1")
    with pytest.raises(paml.FormatError, match=name.partition(".")[0]):
        paml.load(copy)
    (copy / name).unlink()
    with pytest.raises(paml.FormatError, match=r"is missing|has not finished"):
        paml.load(copy)


def test_a_run_of_another_version_or_with_other_items_is_refused(run: paml.Run, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    items = pl.read_parquet(copy / "catalogue.parquet")
    items.head(3).write_parquet(copy / "catalogue.parquet")
    forge_run(copy)
    with pytest.raises(paml.FormatError, match="has 3 items, the run 80; train again"):
        paml.load(copy).adapt()
    items.drop("genre").write_parquet(copy / "catalogue.parquet")
    forge_run(copy)
    with pytest.raises(paml.FormatError, match="has no column 'genre'"):
        paml.load(copy).adapt()
    settings = copy / "settings.json"
    settings.write_text(settings.read_text().replace('"format": 5', '"format": 4'))
    with pytest.raises(paml.FormatError, match="is of format 4, and this version reads format 5; train again") as error:
        paml.load(copy)
    again = error.value.again
    assert again is not None
    assert again.words[:2] == ["train", run.settings.data_path]
    assert again.options == {"method": "ridge", "recipe": "tuned", "seed": 0, "out": f"{copy}-new"}


def test_the_data_set_is_not_needed(tmp_path: Path) -> None:
    data = paml.prepare("synthetic", out=tmp_path / "data", users=100, items=30)
    run = paml.train(data, "ridge", out=tmp_path / "run", epochs=1, ensemble_size=1)
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


def test_in_one_step_a_reason_is_the_effect_of_the_rating_alone(world: paml.Dataset, tmp_path: Path) -> None:
    """The loss is a mean over n rows, so each alone moves a score n times as far as together with the others."""
    settings = {"hidden": (), "embedding_size": 4, "inner_steps": 1, "inner_rate": 0.05, "epochs": 1}
    run = paml.train(world, "melu", "paper", out=tmp_path / "run", settings=settings)
    profile, ratings = {"gender": "F"}, {"3": 5, "7": 1, "11": 4}
    before = run.adapt(profile).predict(["20"])[0]
    reasons = {reason.item: reason.effect for reason in run.adapt(profile, ratings).why("20")}
    for item, value in ratings.items():
        alone = run.adapt(profile, {item: value}).predict(["20"])[0] - before
        assert reasons[item] == pytest.approx(alone / 3, abs=1e-5)
    assert max(map(abs, reasons.values())) > 0.01


def test_large_catalogues_are_scored_in_chunks(run: paml.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    new_users, queries, _ = new_users_of(run.data(), 5)
    whole = [user.scores() for user in run.predictor.adapt_many(new_users, score=True)]
    some = [user.predict(items) for user, items in zip(run.predictor.adapt_many(new_users), queries, strict=True)]
    for path in ("members", "plan"):
        monkeypatch.setattr(f"paml.recommend.{path}.CELLS_AT_ONCE", 500)
    users = run.predictor.adapt_many(new_users, score=True)
    np.testing.assert_allclose([user.scores() for user in users], whole, atol=1e-6)
    for user, items, expected in zip(run.predictor.adapt_many(new_users), queries, some, strict=True):
        np.testing.assert_allclose(user.predict(items), expected, atol=1e-6)
    assert users[0].predict([]).shape == (0,)


def test_squashing_onto_the_scale_is_the_same_in_use() -> None:
    out = torch.linspace(-10, 20, 10_001)
    in_training = on_scale(out, 1.0, 5.0)
    with torch.no_grad():
        assert torch.equal(on_scale(out, 1.0, 5.0), in_training)
    with torch.inference_mode():
        assert torch.equal(on_scale(out[4500:4600], 1.0, 5.0), in_training[4500:4600])


@pytest.mark.parametrize("choice", [True, False])
def test_a_user_keeps_no_scores_of_others(choice: bool, run: paml.Run) -> None:
    """Users who were adapted together may be kept one without the other."""
    predictor = run.predictor if choice else replace(run, choice=None, preference=None).predictor
    users = predictor.adapt_many([NewUser({}, [Rating(str(item), 4.0)]) for item in range(1, 9)], score=True)
    for user in users:
        kept = [one for one in vars(user._known).values() if isinstance(one, np.ndarray)]
        assert kept
        assert all(one.base is None for one in kept)


@pytest.mark.parametrize("by", ["preference", "choice", "rating"])
def test_who_changes_scores_changes_no_list(by: By, run: paml.Run) -> None:
    user = run.adapt(ratings={"3": 5})
    scores_I = user.scores(by=by)
    first = user.recommend(5, by=by)
    scores_I *= -1
    assert user.recommend(5, by=by) == first


def test_a_single_id_is_not_taken_for_its_characters(run: paml.Run) -> None:
    user = run.adapt(ratings={"3": 5})
    assert [one.item for one in user.recommend(5, among="12")] == ["12"]
    assert user.reasons("12") == user.reasons(["12"])
    assert user.next_question(exclude="12") == user.next_question(exclude=["12"])
    assert user.predict("12").tolist() == user.predict(["12"]).tolist()


def test_numbers_of_numpy_are_numbers(run: paml.Run) -> None:
    plain = run.adapt(profile={"gender": "F", "age": 25}, ratings={3: 5, "7": 2})
    numpy = run.adapt(
        profile={"gender": "F", "age": np.int64(25)}, ratings={np.int64(3): np.int8(5), "7": np.float32(2)}
    )
    assert numpy.recommend(5) == plain.recommend(5)
    assert run.adapt(profile={"age": np.float64(25.0)}).unknown == ()
    assert run.adapt(profile={"age": np.float32(25.0)}).recommend(5) == run.adapt(profile={"age": 25}).recommend(5)
