"""What to ask next: identities of the gain, and a comparison with refitting for every possible answer."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import paml
from paml.engine.adapt import MIN_VARIANCE
from paml.episodes.batches import QueryBlock
from paml.methods.learner import Adapted, Learner
from paml.methods.rates import FixedRate
from paml.methods.registry import METHODS
from paml.recommend.elicitation import MAX_MEMBERS, gains
from paml.recommend.familiarity import MIN_CHANCE, Familiarity, fit_familiarity
from paml.recommend.requests import NewUser, Rating

ANSWERS = (Rating("3", 5), Rating("20", 2), Rating("41", 4))
Pairs = list[tuple[Learner, Adapted]]


@pytest.fixture(scope="module")
def run(world: paml.Dataset, tmp_path_factory: pytest.TempPathFactory) -> paml.Run:
    return paml.train(world, "ridge", out=tmp_path_factory.mktemp("questions") / "run", epochs=2, ensemble_size=2)


def adapted_to(run: paml.Run, ratings: tuple[Rating, ...], rate: float | None = None) -> tuple[Pairs, QueryBlock]:
    """Members adapted to one user, all with one rate if it is given, and all items."""
    predictor = run.predictor
    batch = predictor.batch([NewUser({}, ratings)])
    pairs = []
    for member in predictor.members:
        learner = member.learner
        if rate is not None:
            learner = Learner(learner.network, FixedRate(rate), learner.solver, learner.head)
        pairs.append((learner, learner.adapt(learner.embed(batch))))
    return pairs, predictor.block(torch.arange(len(predictor.catalogue)), None)


def gains_of(run: paml.Run, ratings: tuple[Rating, ...], rate: float | None = None) -> np.ndarray:
    """The gains of all items if all are known."""
    pairs, block = adapted_to(run, ratings, rate)
    return gains(pairs, block, torch.ones(block.index_BR.shape))[0].numpy()


@pytest.mark.parametrize("target", ["rating", "click", "choice"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_asks_and_no_gain_is_negative(
    method: str, target: str, world: paml.Dataset, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    data = world if target == "rating" else request.getfixturevalue(f"{target}_world")
    run = paml.train(data, method, out=tmp_path / "run", epochs=1, ensemble_size=1)
    ratings = tuple(Rating(rating.item, float(rating.value > 3 or target == "choice")) for rating in ANSWERS)
    ratings = ANSWERS if target == "rating" else ratings
    gain_I = gains_of(run, ratings)
    assert np.isfinite(gain_I).all()
    assert (gain_I >= 0).all()
    assert gain_I.max() > 0
    question = run.adapt(ratings=ratings).next_question()
    assert question is not None
    assert question.item not in {rating.item for rating in ratings}
    assert question.gain > 0
    assert 0 < question.chance <= 1


def test_softmax_heads_ask_too(world: paml.Dataset, tmp_path: Path) -> None:
    run = paml.train(world, "reg_paml", recipe="paper", out=tmp_path / "run", epochs=1, head="classes")
    assert gains_of(run, ANSWERS).max() > 0
    assert run.adapt(ratings=ANSWERS).next_question() is not None


@pytest.mark.parametrize("method", METHODS)
def test_runs_that_only_rank_ask_for_what_moves_the_chances(method: str, world: paml.Dataset, tmp_path: Path) -> None:
    run = paml.train(world, method, out=tmp_path / "run", epochs=1, ensemble_size=1, head="choice")
    gain_I = gains_of(run, ANSWERS)
    assert np.isfinite(gain_I).all()
    assert (gain_I >= 0).all()
    user = run.adapt(ratings=ANSWERS)
    first = user.next_question()
    assert first is not None
    assert first.item not in {rating.item for rating in ANSWERS}
    assert first.gain > 0
    second = user.next_question(exclude=[first.item])
    assert second is not None
    assert second.item != first.item
    assert run.adapt().next_question() is not None
    assert user.next_question(exclude=run.predictor.catalogue.ids) is None


def test_the_gain_of_a_choice_is_how_far_the_chances_move_if_the_item_is_known(
    world: paml.Dataset, tmp_path: Path
) -> None:
    """Without `bias_by_count`, which changes popularity's weight after any answer alike."""
    settings = {"epochs": 3, "ensemble_size": 1, "head": "choice", "bias_by_count": False}
    run = paml.train(world, "ridge", out=tmp_path / "run", settings=settings)
    gain_I, seen = gains_of(run, ANSWERS), {rating.item for rating in ANSWERS}
    now_I = run.adapt(ratings=ANSWERS).scores(by="choice").astype(np.float64)
    gained, moved = [], []
    for gain, item in zip(gain_I, run.predictor.catalogue.ids, strict=True):
        if item not in seen:
            after_I = run.adapt(ratings=(*ANSWERS, Rating(item, 5))).scores(by="choice").astype(np.float64)
            gained.append(gain)
            moved.append(np.exp(after_I) @ (after_I - now_I))
    assert np.corrcoef(gained, moved)[0, 1] > 0.99
    assert np.mean(gained) == pytest.approx(np.mean(moved), rel=0.2)


def test_a_run_with_a_choice_part_asks_for_what_moves_the_chances(run: paml.Run) -> None:
    predictor, catalogue = run.predictor, run.predictor.catalogue
    assert predictor.choice is not None
    rated_A = catalogue.rows([rating.item for rating in ANSWERS])
    open_R = torch.from_numpy(np.setdiff1d(np.arange(len(catalogue)), rated_A))
    told_1A = torch.ones(1, len(rated_A))
    chance_1I = catalogue.familiarity.chances(torch.from_numpy(rated_A).unsqueeze(0), told_1A, told_1A)
    batch, block = predictor.batch([NewUser({}, ANSWERS)]), predictor.block(open_R, None)
    pairs = [(member.learner, member.adapt(batch)) for member in predictor.choice.members[:MAX_MEMBERS]]
    gain_R = gains(pairs, block, chance_1I[:, open_R])[0]
    question = run.adapt(ratings=ANSWERS).next_question()
    assert question is not None
    assert question.item == catalogue.ids[int(open_R[gain_R.argmax()])]
    assert question.gain == pytest.approx(float(gain_R.max()), rel=1e-4)


def test_without_prior_variance_an_answer_gains_nothing(world: paml.Dataset, tmp_path: Path) -> None:
    run = paml.train(world, "ridge", out=tmp_path / "run", epochs=1, ensemble_size=1, prior_from_items=0)
    assert gains_of(run, ANSWERS, rate=0.5).max() > 1e-3
    assert gains_of(run, ANSWERS, rate=0.0).max() < MIN_VARIANCE


def test_the_same_question_twice_gains_less(run: paml.Run) -> None:
    first_I = gains_of(run, ())
    item = int(first_I.argmax())
    again_I = gains_of(run, (Rating(run.predictor.catalogue.ids[item], 4),))
    assert again_I[item] < 0.9 * first_I[item]


def test_the_gain_is_the_variance_of_predictions_refitted_with_the_answer(world: paml.Dataset, tmp_path: Path) -> None:
    """Answers are drawn from the model's own predictive distribution; adaptation is linear in the answer."""
    run = paml.train(world, "ridge", out=tmp_path / "run", epochs=2, ensemble_size=1, on_scale=False)
    pairs, block = adapted_to(run, ANSWERS)
    gain_I = gains(pairs, block, torch.ones(block.index_BR.shape))[0].numpy()
    ids, seen = run.predictor.catalogue.ids, {rating.item for rating in ANSWERS}
    now_I = run.adapt(ratings=ANSWERS).scores(by="rating")
    expected_I = np.zeros(len(ids))
    for q, item in enumerate(ids):
        if item in seen:
            continue
        low_I, high_I = (run.adapt(ratings=(*ANSWERS, Rating(item, value))).scores(by="rating") for value in (2, 4))
        slope_I = (high_I - low_I) / 2  # of the predictions by the answer
        predictive_variance = 0.5 / (1 - slope_I[q])  # k(q, q) + 1 / 2, by the leverage of the answer
        # predictions = now + prior + slope * (answer - (now + prior)_q): the prior moves since the user knows q
        moved_I = low_I - now_I + slope_I * (now_I[q] - 2)
        prior_I = moved_I + slope_I * moved_I[q] / (1 - slope_I[q])
        expected_I[q] = predictive_variance * (slope_I**2).mean() + (prior_I**2).mean()
    asked_I = expected_I > 0
    np.testing.assert_allclose(gain_I[asked_I], expected_I[asked_I], rtol=2e-3)
    assert np.argmax(gain_I * asked_I) == np.argmax(expected_I)


def test_gains_in_a_batch_are_those_of_each_user_alone(run: paml.Run) -> None:
    new_users = [NewUser({}, ANSWERS), NewUser({}, ANSWERS[:1])]
    predictor = run.predictor
    batch = predictor.batch(new_users)
    pairs = [(member.learner, member.adapt(batch)) for member in predictor.members]
    block = predictor.block(torch.arange(len(predictor.catalogue)), None, users=2)
    both_BI = gains(pairs, block, torch.ones(block.index_BR.shape)).numpy()
    np.testing.assert_allclose(both_BI[0], gains_of(run, ANSWERS), rtol=1e-3)
    np.testing.assert_allclose(both_BI[1], gains_of(run, ANSWERS[:1]), rtol=1e-3)


def test_nothing_is_asked_twice_and_the_questions_end(run: paml.Run) -> None:
    ids = run.predictor.catalogue.ids
    user = run.adapt(ratings=ANSWERS)
    skipped: list[str] = []
    for _ in range(5):
        question = user.next_question(exclude=skipped)
        assert question is not None
        assert question.item not in skipped
        skipped.append(question.item)
    assert user.next_question(exclude=ids) is None
    with pytest.raises(paml.errors.UnknownItem):
        user.next_question(exclude=["no such item"])


def test_familiarity_follows_from_other_known_items() -> None:
    """Two groups of items: a user who knows one item of a group knows the others."""
    vectors_IR = torch.tensor([[0.4], [0.4], [-0.4], [-0.4]])
    known = Familiarity(torch.full((4,), 0.5), vectors_IR)
    index_BA, mask_BA = torch.tensor([[0], [0], [0]]), torch.tensor([[1.0], [1.0], [0.0]])
    chance_BI = known.chances(index_BA, torch.tensor([[1.0], [0.0], [0.0]]), mask_BA)
    assert chance_BI[0, 1] > 0.6 > 0.4 > chance_BI[0, 2]
    assert chance_BI[1, 1] < 0.4 < 0.6 < chance_BI[1, 2]
    assert torch.equal(chance_BI[2], known.share_I)


def test_shares_and_directions_come_from_training_users(world: paml.Dataset) -> None:
    known = fit_familiarity(world, np.random.default_rng(0))
    end = world.manifest.splits["train"][1]
    offsets = world.array("offsets")
    x_UI = np.zeros((end, world.manifest.items))
    x_UI[np.repeat(np.arange(end), np.diff(offsets[: end + 1])), world.array("item")[: offsets[end]]] = 1
    np.testing.assert_allclose(known.share_I, x_UI.mean(axis=0), atol=1e-6)
    centred_UI = x_UI - x_UI.mean(axis=0)
    size_K = np.linalg.svd(centred_UI, compute_uv=False)
    found_R = np.linalg.norm(known.vectors_IR.numpy(), axis=0) * end**0.5
    np.testing.assert_allclose(found_R[:4], size_K[:4], rtol=0.02)
    covariance_II = centred_UI.T @ centred_UI / end
    error = np.linalg.norm(covariance_II - known.vectors_IR.numpy() @ known.vectors_IR.numpy().T)
    assert error < 1.1 * np.linalg.norm(size_K[16:] ** 2 / end)
    assert (known.noise_I > 0).all()
    assert known.chances(torch.tensor([[0]]), torch.ones(1, 1), torch.ones(1, 1)).min() >= MIN_CHANCE


def test_a_number_far_outside_training_has_a_question_and_no_negative_gain(tmp_path: Path) -> None:
    """A field without limits and a network of several layers: features are thousands of times what they were."""
    rng = np.random.default_rng(0)
    rated = [(user, int(item), int(rng.integers(1, 6))) for user in range(60) for item in rng.choice(20, 12, False)]
    data = paml.prepare(
        interactions=pl.DataFrame(rated, ["user", "item", "rating"], orient="row"),
        items=pl.DataFrame({"item": range(20), "genre": [f"g{item % 4}" for item in range(20)]}),
        users=pl.DataFrame({"user": range(60), "age": rng.normal(40, 10, 60)}),
        schema={
            "interactions": {"file": "ratings", "user": "user", "item": "item", "target": "rating"},
            "users": {"file": "users", "key": "user", "fields": {"age": "numeric"}},
            "items": {"file": "items", "key": "item", "fields": {"genre": "categorical"}},
            "target": {"kind": "rating", "low": 1, "high": 5},
        },
        out=tmp_path / "data",
        min_interactions=3,
    )
    run = paml.train(data, "reg_paml", recipe="paper", out=tmp_path / "run", epochs=2)
    predictor = run.predictor
    block = predictor.block(torch.arange(len(predictor.catalogue)), None)
    for age in (40, 1e4, 1e9, 2**53 - 1):
        batch = predictor.batch([NewUser({"age": age}, [Rating("0", 5.0), Rating("1", 1.0)])])
        pairs = [(member.learner, member.adapt(batch)) for member in predictor.members]
        gain_I = gains(pairs, block, torch.ones(block.index_BR.shape))[0]
        assert gain_I.isfinite().all()
        assert (gain_I >= 0).all()
        assert run.adapt({"age": age}, {"0": 5, "1": 1}).next_question() is not None
