"""A plan answers what the general path answers: every method, head and network of one layer, whatever is known."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paml
from paml.files import listed
from paml.methods.registry import METHODS, build_ensemble, fit_to_data
from paml.network.affinity import Affinity
from paml.network.build import DataShape
from paml.recommend.catalogue import Catalogue, write_catalogue
from paml.recommend.explain import effects_on_choice, effects_on_rating
from paml.recommend.plan import PlannedUsers
from paml.recommend.predictor import Predictor
from paml.recommend.rate_profile import ReferenceUsers
from paml.recommend.requests import NewUser, Rating
from paml.training.recipe import load_recipe
from smalltables import SCHEMA_TOML, write_tables

RunOf = Callable[[str, str], paml.Run]
MEMBERS = 3
FACTORS = {
    "network": "factors",
    "multi_pooling": "root",
    "hidden": (),
    "item_embedding": 5,
    "prior_from_profile": True,
    "prior_from_items": 4,
    "pseudo_count": 3.0,
    "inner_steps": 3,
    "embedding_scale": 0.3,
    "start_at_mean": True,
}
FIELDS = {"network": "fields", "hidden": (), "embedding_size": 2, "item_bias": True, "inner_steps": 2}
CHOICE = {**FACTORS, "head": "choice", "bias_by_count": True, "field_scale": 0.3}
STRONG = {"inner_rate": 0.1, "rate_scale": 0.2, "memory_size": 20, "neighbours_inference": 3, "ensemble_size": MEMBERS}
GRADIENT_METHODS = [method for method in METHODS if method != "ridge"]


def predictor_of(data: paml.Dataset, folder: Path, method: str, settings: dict[str, Any]) -> Predictor:
    """A predictor with random weights, all of them: biases, powers and levels that start at 0, too."""
    recipe = load_recipe("paper", method, {**STRONG, **settings})
    rng = torch.Generator().manual_seed(5)
    ensemble = build_ensemble(method, DataShape.of(data), recipe, rng)
    fit_to_data(ensemble.members, data)
    for member in ensemble.members:
        for weights in member.parameters():
            weights.data += 0.2 * torch.randn(weights.shape, generator=rng)
        memory = getattr(member.rates, "memory", None)
        if memory is not None:
            users = torch.arange(12)
            memory.store(
                users, torch.randn(12, member.network.user.width, generator=rng), torch.rand(12, generator=rng)
            )
    file = folder / "catalogue.parquet"
    if not file.exists():
        write_catalogue(data, file, 0)
    width = ensemble.members[0].network.user.width
    reference = ReferenceUsers(np.array([True]), np.array([0.1]), np.zeros((1, width), dtype=np.float32))
    return Predictor(ensemble, data.schema, data.vocabulary, Catalogue.load(file, listed(file), data.schema), reference)


def new_users_of(predictor: Predictor, profiles: Sequence[dict[str, Any]], context: dict[str, Any]) -> list[NewUser]:
    """Users with no, one, few and many ratings, with and without a profile, in mixed order."""
    ids, rng = predictor.catalogue.ids, np.random.default_rng(3)
    target, found = predictor.target, []
    for k, count in enumerate([4, 0, 1, len(ids) - 2, 0, 9, 2]):
        items = rng.permutation(len(ids))[:count]
        values = rng.integers(int(target.low), int(target.high) + 1, count)
        contexts = [context if n % 2 else {} for n in range(count)]
        rated = zip(items, values, contexts, strict=True)
        found.append(NewUser(profiles[k % len(profiles)], [Rating(ids[i], float(y), c) for i, y, c in rated]))
    return found


@torch.inference_mode()
def check(
    predictor: Predictor, new_users: Sequence[NewUser], contexts: Sequence[dict[str, Any] | None] = (None,)
) -> None:
    """The plan's answers, for all at once and one by one, against the general path's."""
    plan, general, encoding = predictor.plan, predictor.general, predictor.encoding
    assert plan is not None
    encoded = [encoding.encode(new_user) for new_user in new_users]
    expected, together = general.adapt(encoded), plan.adapt(encoded)
    alone = [plan.adapt([one]) for one in encoded]
    index_R = torch.tensor([3, 0, 7])
    for context in contexts:
        looked_up = encoding.context(context)
        whole_BI, some_BR = general.score_all(expected, looked_up), general.score(expected, index_R, looked_up)
        assert len(whole_BI.unique(dim=0)) > len(new_users) - 2  # users do differ
        close(plan.score_all(together, looked_up), whole_BI)
        close(plan.score(together, index_R, looked_up), some_BR)
        close(torch.cat([plan.score_all(one, looked_up) for one in alone]), whole_BI)
        close(torch.cat([plan.score(one, index_R, looked_up) for one in alone]), some_BR)
    for found in (together, PlannedUsers(*(torch.cat(p, dim=d) for p, d in zip(parts(alone), (1, 0, 0), strict=True)))):
        close(found.rate_B, expected.rate_B)
        close(found.h_BH, expected.h_BH)
    last = len(encoded) - 1
    close(plan.score_all(together.of(last), looked_up), whole_BI[last:])


def parts(users: Sequence[PlannedUsers]) -> list[tuple[torch.Tensor, ...]]:
    return [*zip(*(one.tensors() for one in users), strict=True)]


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found / scale, expected / scale, atol=1e-5, rtol=1e-5)


PROFILES = [{"gender": "F", "age": "25", "zip": "unheard of"}, {}, {"gender": "M", "age": 35, "occupation": "3"}]
TARGETS = {
    "rating": ("world", {**FACTORS, "on_scale": True}),
    "click": ("click_world", {**FACTORS, "field_scale": 0.3}),
    "choice": ("world", CHOICE),
    "choice of clicks": ("click_world", {**CHOICE, "bias_by_count": False, "pseudo_count": 0.0}),
    "fields": ("world", FIELDS),
    "affinity": ("world", {**FACTORS, "affinity_fields": ("director", "genre"), "affinity_dim": 6}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("catalogues")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("method", METHODS)
def test_a_plan_answers_as_the_general_path(
    target: str, method: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    name, settings = TARGETS[target]
    data = request.getfixturevalue(name)
    place = folder / name
    place.mkdir(exist_ok=True)
    predictor = predictor_of(data, place, method, settings)
    check(predictor, new_users_of(predictor, PROFILES, {}))


@pytest.mark.parametrize("method", ["meta_sgd", "at_paml", "ridge"])
def test_affinity_that_is_looked_up(
    method: str, world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Affinity, "is_looked_up", lambda affinity, items: True)
    predictor = predictor_of(world, tmp_path, method, TARGETS["affinity"][1])
    check(predictor, new_users_of(predictor, PROFILES, {}))


@pytest.mark.parametrize("target", ["rating", "click", "choice", "affinity"])
def test_rows_that_are_multiplied_once_and_looked_up(
    target: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Affinity, "is_looked_up", lambda affinity, items: True)
    monkeypatch.setattr("paml.engine.joint.MAX_DISTINCT", 2.0)
    for together in (2, 100):
        monkeypatch.setattr("paml.engine.solo.TOGETHER", together)
        monkeypatch.setattr("paml.recommend.solo.TOGETHER", together)
        predictor = predictor_of(request.getfixturevalue(TARGETS[target][0]), tmp_path, "paml", TARGETS[target][1])
        check(predictor, new_users_of(predictor, PROFILES, {}))


@pytest.mark.parametrize("method", GRADIENT_METHODS)
def test_levels_as_classes(method: str, world: paml.Dataset, tmp_path: Path) -> None:
    predictor = predictor_of(world, tmp_path, method, {**FACTORS, "head": "classes", "pseudo_count": 0.0})
    check(predictor, new_users_of(predictor, PROFILES, {}))


@pytest.mark.parametrize("method", ["paml", "ridge"])
def test_without_steps_and_without_a_prior(method: str, world: paml.Dataset, tmp_path: Path) -> None:
    bare = {"prior_from_profile": False, "prior_from_items": 0}
    for settings in ({**FACTORS, "inner_steps": 0}, {**FACTORS, **bare}, {**FACTORS, **bare, "inner_steps": 0}):
        predictor = predictor_of(world, tmp_path, method, settings)
        check(predictor, new_users_of(predictor, PROFILES[:1] * 7, {})[2:4])
        check(predictor, new_users_of(predictor, [{"gender": "F"}, {"age": "25"}], {})[:2])


def test_users_of_large_and_small_histories_are_adapted_in_groups(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for settings in (FACTORS, CHOICE):
        predictor = predictor_of(world, tmp_path, "paml", settings)
        for limit in (1, 500, 5000):
            monkeypatch.setattr("paml.recommend.plan.MAX_ROWS", limit)
            monkeypatch.setattr("paml.recommend.plan.CELLS_AT_ONCE", limit)
            check(predictor, new_users_of(predictor, PROFILES, {}))


@pytest.mark.parametrize("method", ["melu", "reg_paml"])
def test_many_users_choose_together(
    method: str, world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = predictor_of(world, tmp_path, method, CHOICE)
    monkeypatch.setattr("paml.engine.solo.TOGETHER", 2)
    check(predictor, new_users_of(predictor, PROFILES, {}))


@pytest.mark.parametrize("target", ["rating", "choice", "affinity"])
def test_many_users_are_scored_member_by_member(
    target: str, world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Affinity, "is_looked_up", lambda affinity, items: True)
    monkeypatch.setattr("paml.recommend.solo.TOGETHER", 2)
    predictor = predictor_of(world, tmp_path, "paml", TARGETS[target][1])
    for cells in (1, 1 << 19):  # two users after the other, and all together
        monkeypatch.setattr("paml.recommend.solo.CELLS_IN_CACHE", cells)
        check(predictor, new_users_of(predictor, PROFILES, {}))


@pytest.mark.parametrize("target", ["rating", "choice", "fields", "affinity"])
@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_reasons_of_a_plan_are_those_of_the_general_path(
    target: str, method: str, world: paml.Dataset, tmp_path: Path
) -> None:
    """One rating, few, and more than a row has entries: whichever system is smaller."""
    predictor, index_R = predictor_of(world, tmp_path, method, TARGETS[target][1]), torch.tensor([3, 0, 7])
    solo = predictor.plan and predictor.plan.solo
    for new_user in new_users_of(predictor, PROFILES, {}):
        encoded = predictor.encoding.encode(new_user)
        if solo is None or not new_user.ratings:
            continue
        one_by_one, adapted = predictor.general.one_by_one(encoded), predictor.adapted([encoded])
        if predictor.rates:
            expected_RS = effects_on_rating(one_by_one, predictor.block(index_R, None))
            found_RS = predictor.effects_on_rating(encoded, adapted, index_R, None)
        else:
            expected_RS = effects_on_choice(one_by_one, index_R)
            found_RS = predictor.effects_on_choice(encoded, adapted, index_R)
        assert expected_RS.abs().max() > 1e-3
        close(found_RS, expected_RS)
    assert (solo is None) == (method == "ridge" and target == "choice")  # which has no form for one user


def test_reasons_are_the_same_where_autograd_is_on(
    world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training, networks of one layer keep no steps to explain."""
    predictor, index_R = predictor_of(world, tmp_path, "melu", TARGETS["rating"][1]), torch.tensor([3, 0, 7])
    encoded = predictor.encoding.encode(new_users_of(predictor, PROFILES, {})[-1])
    adapted = predictor.adapted([encoded])
    expected_RS = predictor.effects_on_rating(encoded, adapted, index_R, None)
    monkeypatch.setattr(predictor, "plan", None)
    found_RS = predictor.effects_on_rating(encoded, adapted, index_R, None)
    assert found_RS.abs().max() > 1e-3
    close(found_RS, expected_RS)
    in_training = predictor.general.one_by_one(encoded)
    with pytest.raises(AssertionError, match="steps are not kept"):
        effects_on_rating(in_training, predictor.block(index_R, None))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> paml.Dataset:
    """Users with numbers and lists of values, and interactions with a context of each kind."""
    folder = write_tables(tmp_path_factory.mktemp("mixed") / "tables", users=60, items=30)
    people = (folder / "users.csv").read_text().splitlines()
    hobbies = ["", "chess|golf", "golf", "tennis|chess|golf"]
    rows = [f"{line},{hobbies[k % 4]},{150 + k % 40}" for k, line in enumerate(people[1:])]
    (folder / "users.csv").write_text("\n".join([f"{people[0]},hobbies,height", *rows]) + "\n")
    log = (folder / "ratings.csv").read_text().splitlines()
    rated = [f"{line},{'ab'[k % 3 == 0]},{'x|y' if k % 2 else 'x'},{k % 7}" for k, line in enumerate(log[1:])]
    (folder / "ratings.csv").write_text("\n".join([f"{log[0]},device,tags,hour", *rated]) + "\n")
    context = 'device = "categorical"\ntags = "multi"\nhour = "numeric"\n'
    schema = SCHEMA_TOML.replace('time = "when"\n', f'time = "when"\n[interactions.context]\n{context}')
    schema = schema.replace(
        'gender = "categorical"\n', 'gender = "categorical"\nhobbies = "multi"\nheight = "numeric"\n'
    )
    (folder / "schema.toml").write_text(schema)
    return paml.prepare("tables", folder, tmp_path_factory.mktemp("mixed") / "data", cold_share=1, min_interactions=2)


MIXED_PROFILES = [
    {"gender": "F", "hobbies": ["chess", "golf", "flying"], "height": 171.5},
    {},
    {"hobbies": "golf", "height": 1000},
    {"gender": "M", "hobbies": [], "age": 21},
]


@pytest.mark.parametrize("pooling", ["mean", "root"])
@pytest.mark.parametrize("method", METHODS)
def test_numbers_lists_and_contexts(method: str, pooling: str, mixed: paml.Dataset, tmp_path: Path) -> None:
    predictor = predictor_of(mixed, tmp_path, method, {**FACTORS, "multi_pooling": pooling})
    context = {"device": "b", "tags": ["x", "y"], "hour": 3}
    new_users = new_users_of(predictor, MIXED_PROFILES, context)
    check(predictor, new_users, (None, context, {"tags": "y"}))


@pytest.mark.parametrize("target", ["rating", "click"])
@pytest.mark.parametrize("method", ["ridge", "melu"])
def test_lists_are_ordered_as_in_evaluation(target: str, method: str, run_of: RunOf, tmp_path: Path) -> None:
    """The preference of the plan against that of the formula, and all users at once against one by one."""
    run = run_of("rating", method)
    if target == "click":
        data = run_of("click", "ridge").data()
        settings = {**CHOICE, "head": "choice", "ensemble_size": 2, "epochs": 1}
        run = paml.train(data, method, out=tmp_path / "run", settings=settings)
    predictor = run.predictor
    preference, chooser = predictor.preference, predictor.choice or predictor
    assert preference is not None
    new_users = new_users_of(predictor, PROFILES, {})
    batch = predictor.batch(new_users)
    encoded = [predictor.encoding.encode(new_user) for new_user in new_users]
    choice_BI = chooser.general.score_all(chooser.general.adapt(encoded), None)
    rating_BI = predictor.general.score_all(predictor.general.adapt(encoded), None) if predictor.rates else None
    with torch.inference_mode():
        expected_BI = preference.score(batch, choice_BI, rating_BI)
    together = predictor.adapt_many(new_users, score=True)
    alone = [predictor.adapt_many([new_user])[0] for new_user in new_users]
    for users in (together, alone):
        close(torch.from_numpy(np.stack([user.scores() for user in users])), expected_BI)
        close(torch.from_numpy(np.stack([user.scores(by="choice") for user in users])), choice_BI.log_softmax(dim=1))


@pytest.mark.parametrize("exclude_seen", [True, False])
def test_a_list_by_preference_is_the_best_of_all_though_few_are_rated(exclude_seen: bool, run_of: RunOf) -> None:
    predictor = run_of("rating", "ridge").predictor
    new_users = new_users_of(predictor, PROFILES, {})
    for score in (False, True):
        users = predictor.adapt_many(new_users, score=score)
        lists = [user.recommend(6, exclude_seen=exclude_seen) for user in users]
        rated = [user._known.output_I is not None for user in users]
        assert not all(rated)  # which is the point: predictions of most items were not needed
        for user, found in zip(users, lists, strict=True):
            score_I = user.scores().copy()
            if exclude_seen:
                score_I[user._encoded.index_S] = -np.inf
            best = np.sort(score_I[np.isfinite(score_I)])[::-1][:6]
            np.testing.assert_allclose([one.score for one in found], best, atol=1e-5)
            np.testing.assert_allclose([one.rating for one in found], user.predict([one.item for one in found]), 1e-5)


def test_hidden_layers_have_no_plan(world: paml.Dataset, tmp_path: Path) -> None:
    predictor = predictor_of(world, tmp_path, "melu", {**FACTORS, "hidden": (6,)})
    assert predictor.plan is None
    assert len(predictor.adapt({}, {"3": 5}).recommend(5)) == 5


def test_threads_share_a_plan(run: paml.Run) -> None:
    predictor = run.predictor
    new_users = new_users_of(predictor, PROFILES, {})

    def scores(new_user: NewUser) -> np.ndarray:
        return predictor.adapt(new_user.profile, new_user.ratings).scores()

    expected = [scores(new_user) for new_user in new_users]
    with ThreadPoolExecutor(8) as pool:
        for found, right in zip(pool.map(scores, new_users * 10), expected * 10, strict=True):
            np.testing.assert_array_equal(found, right)


def test_lists_and_reasons_do_not_adapt_members_one_by_one(run: paml.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a list costs: no member is adapted, as only questions need that."""
    predictor = run.predictor
    monkeypatch.setattr("paml.methods.learner.Learner.adapt", None)
    user = predictor.adapt({"gender": "F"}, {"3": 5, "7": 1})
    assert len(user.recommend(5, why=2)) == 5
    assert user.rate_profile().rate == user.rate
    with pytest.raises(TypeError):
        user.next_question()


def test_the_choice_part_is_adapted_once(run_of: RunOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a list and its reasons, alone or together with others."""
    predictor = run_of("rating", "ridge").predictor
    assert predictor.choice is not None
    new_users = new_users_of(predictor, PROFILES, {})[:3]
    alone, together = predictor.adapt_many(new_users[:1])[0], predictor.adapt_many(new_users, score=True)[0]
    size = alone.nbytes
    first = alone.recommend(3, why=2)
    assert alone.nbytes > size  # what is kept counts
    monkeypatch.setattr(predictor.choice, "adapted", None)
    for user in (alone, together):
        reasons = user.reasons([one.item for one in first], n=2)
        effects = [[reason.effect for reason in some] for some in (*reasons, *(first.reasons or ()))]
        np.testing.assert_allclose(effects[: len(first)], effects[len(first) :], atol=1e-5)
