"""What lists are ordered by: parts and score row by row, fitted without test users, for every kind of data."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import paml
from paml.episodes.batches import Loader, RowBlock, SupportBatch
from paml.episodes.histories import WEIGHTS
from paml.episodes.tasks import Tasks
from paml.evaluation.blinding import BlindedDataset
from paml.evaluation.ranking import JUDGED_SHOTS, quality
from paml.recommend import preference as recommend
from paml.recommend.preference import Blend, Preference, check_order, link_weights, orders, profile_share
from paml.settings import build
from paml.training import checkpoint, preference as training
from paml.training.run import Run
from training.test_loop import PARTS

BLEND = Blend(profile=0.75, linger=4.0, few=3.0, many=5.0, rating=0.6, fade=3)


@pytest.fixture(scope="module")
def run(world: paml.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {**PARTS["both"], "epochs": 1}
    return paml.train(world, "melu", out=tmp_path_factory.mktemp("preference") / "run", settings=settings)


def known(data: paml.Dataset, users: int = 5, shots: int | None = None) -> SupportBatch:
    loader = Loader(data)
    return loader.load_known(next(Tasks.of(data, "test").stored(users, shots)), loader.all_items())


def rows_of(block: RowBlock, change: Callable[[torch.Tensor], torch.Tensor]) -> RowBlock:
    """The rows of a block without contexts, changed."""
    return RowBlock(change(block.index_BR), None, change(block.y_BR), change(block.mask_BR))


def training_rows(data: paml.Dataset) -> Iterator[tuple[int, int, float]]:
    offsets, item_N, target_N = (data.array(name) for name in ("offsets", "item", "target"))
    for user in range(*data.manifest.splits["train"]):
        for row in range(offsets[user], offsets[user + 1]):
            yield user, int(item_N[row]), float(target_N[row])


def profile_values(data: paml.Dataset) -> list[dict[str, list[str]]]:
    """The values of every user by field of the profile, as they are in the table."""
    names = [name for name, _ in recommend.profile_fields(data.schema)]
    rows = data.users().select(names).collect().rows(named=True) if names else []
    return [{name: value if isinstance(value := row[name], list) else [value] for name in names} for row in rows]


def log_q(data: paml.Dataset, user: int, item: int) -> float:
    """log p + LIFT times the sum over fields of the mean over values v of log(p_v / p), shrunk by STRENGTH users."""
    people, first, end = profile_values(data), *data.manifest.splits["train"]
    liked = {one for one, j, y in training_rows(data) if j == item and y >= (4 if data.schema.target.high > 1 else 1)}
    p, s = (len(liked) + 0.5) / (end - first + 1), training.STRENGTH
    total = math.log(p)
    for name, values in people[user].items() if people else ():
        lifts = []
        for value in values:
            shares = {u: people[u][name].count(value) / len(people[u][name]) for u in range(first, end)}
            if value is None or not any(shares.values()):  # a value that is unknown says nothing
                lifts.append(0.0)
                continue
            n_v, n_vi = sum(shares.values()), sum(share for u, share in shares.items() if u in liked)
            lifts.append(training.LIFT * math.log((1 + n_vi / (s * p)) / (1 + n_v / s)))
        total += sum(lifts) / max(len(lifts), 1)
    return total


@pytest.mark.parametrize("fade", [1, 3])
@pytest.mark.parametrize("shots", [None, 0, 2])
def test_parts_and_score_are_those_of_the_formula(shots: int | None, fade: int, run: Run, world: paml.Dataset) -> None:
    """Row by row: (1 - s) log p + s log q + f (h / (n + h))^a sum x F + n / (n + h) (m sum x M + c r)."""
    preference, batch = run.preference, known(world, shots=shots)
    assert preference is not None
    rng = torch.Generator().manual_seed(0)
    choice_BI, rating_BI = (torch.randn(5, 80, generator=rng) for _ in range(2))
    blend = BLEND.model_copy(update={"fade": fade})
    preference = Preference(run.settings.data_schema, run.settings.vocabulary, dict(preference.state_dict()), blend)
    found_BI, log_q_BI = preference.score(batch, choice_BI, rating_BI), preference.log_shares(batch.users)
    covered = {item: k for k, item in enumerate(preference.item_K.tolist())}
    assert len(covered) == 80
    for b in range(5):
        there = batch.support.mask_BR[b] > 0
        rows = zip(batch.support.index_BR[b][there].tolist(), batch.support.y_BR[b][there].tolist(), strict=True)
        history = [(item, WEIGHTS["graded"][round(y) - 1]) for item, y in rows]
        n, h = len(history), 15
        s = 0.75 * 4 / (4 + n)
        for j in range(0, 80, 7):
            log_p = float(choice_BI[b, j]) - math.log(sum(math.exp(float(out)) for out in choice_BI[b]))
            few, many = (
                sum(x * float(weight_KK[covered[i], covered[j]]) for i, x in history)
                for weight_KK in (preference.few_KK, preference.many_KK)
            )
            expected = (1 - s) * log_p + s * float(log_q_BI[b, j])
            expected += 3 * (h / (n + h)) ** fade * few + n / (n + h) * (5 * many + 0.6 * float(rating_BI[b, j]))
            assert float(found_BI[b, j]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_blend_of_an_older_run_fades_as_it_did() -> None:
    """Their files name neither the power nor for how long a profile lingers: both were 1 when they were fitted."""
    written = {"profile": 0.75, "few": 24.0, "many": 8.0, "rating": 0.6}
    older = build(Blend, written)
    assert older.model_dump() == written
    few, many = link_weights(older, torch.tensor([[15.0]]))
    assert (float(few), float(many)) == (12.0, 4.0)
    assert profile_share(older, 2.0) == 0.25
    newer = build(Blend, training.START.model_dump())
    assert newer == training.START
    assert float(link_weights(newer, torch.tensor([[15.0]]))[0]) == training.START.few / 8


def test_popularity_by_profile_is_counted_among_training_users(run: Run, world: paml.Dataset) -> None:
    preference, batch = run.preference, next(Tasks.of(world, "test").stored(2))
    assert preference is not None
    loader = Loader(world)
    found_BI = preference.log_shares(loader.load_known(batch, loader.all_items()).users)
    torch.testing.assert_close(found_BI.exp().sum(dim=1), torch.ones(2))  # chances, whose ratios are those of shares
    for b, item in ((0, 0), (0, 40), (1, 7)):
        user = int(batch.user_B[b])
        expected = log_q(world, user, item) - log_q(world, user, 1)
        assert float(found_BI[b, item] - found_BI[b, 1]) == pytest.approx(expected, abs=1e-4)


def test_a_blend_of_one_part_orders_as_that_part(run: Run, world: paml.Dataset) -> None:
    preference, batch = run.preference, known(world)
    assert preference is not None
    outputs = run.outputs(Loader(world, run.ensemble.inputs))(batch)
    parts, count_B1 = preference.parts(batch, *outputs), batch.support.mask_BR.sum(dim=1, keepdim=True)
    assert torch.equal(parts.score(Blend(), count_B1), torch.log_softmax(outputs[0], dim=1))
    torch.testing.assert_close(parts.choice_BI.exp().sum(dim=1), torch.ones(5))
    nobody = known(world, shots=0)
    unknown = preference.parts(nobody, *outputs).score(Blend(profile=1.0, few=2.0, many=3.0), torch.zeros(5, 1))
    torch.testing.assert_close(unknown, preference.log_shares(nobody.users))  # nothing goes with nothing
    only = preference.parts(batch, outputs[0], None).score(Blend(rating=1.0), count_B1)
    assert torch.equal(only, parts.choice_BI)


def test_fitting_reads_nothing_of_test_users(run: Run, world: paml.Dataset) -> None:
    blind = training.fit_preference(BlindedDataset(world, "all"), run)
    assert run.preference is not None
    assert blind.blend == run.preference.blend
    for name, tensor in run.preference.state_dict().items():
        assert torch.equal(blind.state_dict()[name], tensor)


def test_the_blend_is_the_best_of_those_tried_for_validation_users(run: Run, world: paml.Dataset) -> None:
    """By the same measure as other rankers; each number is where no other is better by more than noise."""
    preference, tasks = run.preference, Tasks.of(world, "validation")
    assert preference is not None
    loader = Loader(world, run.ensemble.inputs)
    judge = training._Judge(world, tasks, preference, loader, run.outputs(loader))
    means = [judge.worths(preference.blend, (shots,)).mean() for shots in JUDGED_SHOTS]
    assert np.mean(means) == pytest.approx(quality(world, tasks, run.rank(world)), abs=1e-6)
    choices, shots = training.CHOICES["rating"]  # searched last, with the others as they are
    best_U = judge.worths(preference.blend, shots)
    others = [preference.blend.model_copy(update={"rating": value}) for value in choices]
    winner = max(others, key=lambda blend: judge.worths(blend, shots).mean())
    assert not training._is_better(judge.worths(winner, shots), best_U)


def test_without_validation_users_the_start_goes_by_the_split(run: Run, world: paml.Dataset) -> None:
    """By time, what was rated first says less about what comes later: popularity by profile counts for longer."""
    _, end = world.manifest.splits["train"]
    nobody = {**world.manifest.splits, "validation": (end, end)}
    for support_by, start in (("random", training.START), ("time", training.START_BY_TIME)):
        protocol = world.manifest.protocol.model_copy(update={"support_by": support_by})
        manifest = world.manifest.model_copy(update={"splits": nobody, "protocol": protocol})
        assert training.fit_preference(paml.Dataset(world.path, manifest), run).blend == start
    assert profile_share(training.START_BY_TIME, 3.0) > profile_share(training.START, 3.0)


def test_only_more_than_noise_is_better() -> None:
    old_U = np.array([0.1, 0.2, 0.3, 0.4])
    assert training._is_better(old_U + 0.01, old_U)
    assert not training._is_better(old_U + np.array([0.3, -0.25, 0.3, -0.25]), old_U)
    assert not training._is_better(old_U, old_U)
    gain_U = np.array([0.02, -0.004, 0.011, -0.001])  # by 1.2 standard errors
    assert not training._is_better(old_U + gain_U, old_U)
    assert training._is_better(old_U + gain_U + 0.01, old_U)


def test_weights_between_items_cover_the_most_rated_ones(
    run: Run, world: paml.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "MAX_ITEMS", 45)
    fitted = training.fit_preference(world, run)
    rows_I = np.bincount([item for _, item, _ in training_rows(world)], minlength=80)
    covered = fitted.item_K.numpy()
    assert len(covered) == 45 == len(np.unique(covered))
    assert rows_I[covered].min() >= np.delete(rows_I, covered).max()
    parts = fitted.parts(known(world), torch.zeros(5, 80), None)
    for part_BI in (parts.few_BI, parts.many_BI):
        assert part_BI is not None
        assert not part_BI[:, np.setdiff1d(np.arange(80), covered)].any()
        assert part_BI[:, covered].any()
    monkeypatch.setattr(training, "MAX_ITEMS", 5)  # too few to say what goes with what
    none = training.fit_preference(world, run)
    assert not none.links_items
    parts = none.parts(known(world), torch.zeros(5, 80), None)
    assert parts.few_BI is None
    assert none.score(known(world), torch.zeros(5, 80), None).isfinite().all()


def test_with_too_many_profile_values_popularity_is_that_of_all(
    run: Run, world: paml.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "MAX_LIFTS", 100)
    fitted = training.fit_preference(world, run)
    assert fitted.lift_VI.shape == (0, 80)
    expected_BI = torch.log_softmax(fitted.log_share_I, dim=0).expand(5, -1)
    torch.testing.assert_close(fitted.log_shares(known(world).users), expected_BI)


def test_half_precision_reloads_to_the_same_lists(run: Run, world: paml.Dataset) -> None:
    stored = checkpoint.load(run.path / "preference.safetensors")[0]
    assert {name for name, tensor in stored.items() if tensor.dtype == torch.float16} == set(training.HALVED)
    fresh, batch = training.fit_preference(world, run), known(world, 20)
    loaded, outputs = paml.load(run.path).preference, run.outputs(Loader(world, run.ensemble.inputs))(batch)
    assert loaded is not None
    assert all(buffer.dtype in (torch.float32, torch.int64) for buffer in loaded.buffers())
    fresh.blend = loaded.blend = BLEND
    left, right = (one.score(batch, *outputs) for one in (fresh, loaded))
    torch.testing.assert_close(left, right, rtol=0, atol=1e-3)
    assert torch.equal(left.argsort(dim=1), right.argsort(dim=1))


def lists(tables: Path, tmp_path: Path, *, users: bool) -> paml.Dataset:
    """The small tables without a profile, or with a list of towns in it; some genders are unknown."""
    schema = tables / "schema.toml"
    head, _, tail = schema.read_text().partition("[users.fields]")
    fields = (
        '[users.fields]\ngender = "categorical"\ntown = { kind = "multi", column = "home town" }\n\n' if users else ""
    )
    schema.write_text(head + fields + tail[tail.index("[items]") :])
    people = pl.read_csv(tables / "users.csv")
    towns = [["A", "B", "A|B", "C|A|B", None][k % 5] for k in range(len(people))]
    gender = pl.when(pl.int_range(pl.len()) % 3 > 0).then("gender").alias("gender")
    people.with_columns(pl.Series("home town", towns), gender).write_csv(tables / "users.csv")
    return paml.prepare("tables", tables, tmp_path / "data", cold_share=1, drop_invalid_profiles=False)


@pytest.mark.parametrize("users", [False, True])
def test_profiles_may_be_missing_or_have_lists(users: bool, tables: Path, tmp_path: Path) -> None:
    data = lists(tables, tmp_path, users=users)
    run = paml.train(data, "melu", out=tmp_path / "run", settings={**PARTS["both"], "epochs": 1})
    assert run.preference is not None
    assert len(run.preference.lift_VI) == (
        sum(data.manifest.vocabulary[f"user.{n}"] for n in ("gender", "town")) if users else 0
    )
    batch = next(Tasks.of(data, "train").stored(20))
    assert not users or any(profile_values(data)[user]["gender"] == [None] for user in batch.user_B)
    loader = Loader(data)
    log_q_BI = run.preference.log_shares(loader.load_known(batch, loader.all_items()).users)
    for b in range(len(batch.user_B)):
        user = int(batch.user_B[b])
        for item in (0, 5, 11):
            expected = log_q(data, user, item) - log_q(data, user, 1)
            assert float(log_q_BI[b, item] - log_q_BI[b, 1]) == pytest.approx(expected, abs=1e-4)
    assert paml.evaluate(run)["users"]["all"] == len(Tasks.of(data, "test"))
    user = run.adapt({"town": ["A", "nowhere"]} if users else {}, {run.predictor.catalogue.ids[0]: 5.0})
    assert np.isfinite(user.scores()).all()


def test_clicks_have_a_choice_part_if_asked_for(click_world: paml.Dataset, tmp_path: Path) -> None:
    settings = {"epochs": 1, "ensemble_size": 1, "choice_part": True, "choice.item_embedding": 8}
    run = paml.train(click_world, "melu", out=tmp_path / "run", settings=settings)
    assert run.preference is not None
    batch = known(click_world)
    x_BS = run.preference.row_weights(batch.support)
    assert torch.equal(x_BS, batch.support.y_BR * batch.support.mask_BR)  # a click counts 1, no click nothing
    twice = rows_of(batch.support, lambda one: torch.cat([one, one], dim=1))
    once_BK, few_KK = run.preference.histories(batch.support), run.preference.few_KK
    assert float(once_BK.max()) == 1
    for rows in (batch.support, twice):  # an item that was shown twice counts once, as in training
        assert torch.equal(run.preference.histories(rows), once_BK)
        for b in range(len(once_BK)):
            linked_I = run.preference._linked(rows_of(rows, lambda one, b=b: one[b : b + 1]), few_KK)[0]
            assert torch.allclose(linked_I[run.preference.item_K], once_BK[b] @ few_KK, atol=1e-5)
    user = int(next(Tasks.of(click_world, "test").stored(1)).user_B[0])
    loader = Loader(click_world)
    one = loader.load_known(next(Tasks.of(click_world, "test").stored(1)), loader.all_items())
    log_q_I = run.preference.log_shares(one.users)[0]
    expected = log_q(click_world, user, 3) - log_q(click_world, user, 1)
    assert float(log_q_I[3] - log_q_I[1]) == pytest.approx(expected, abs=1e-4)
    assert 0 < paml.evaluate(run)["ndcg10"]["all"] < 1
    assert run.rank(click_world)(next(Tasks.of(click_world, "test").stored(5))).isfinite().all()


def test_what_lists_may_be_ordered_by() -> None:
    both, choice, rating = (
        orders(rates=rates, chooses=chooses) for rates, chooses in ((True, True), (False, True), (True, False))
    )
    assert [check_order(None, known) for known in (both, choice, rating)] == ["preference", "preference", "rating"]
    assert check_order("choice", both) == "choice"
    for by, known, names in (
        ("rating", choice, "preference, choice"),
        ("choice", rating, "rating"),
        ("taste", both, "preference, choice, rating"),
    ):
        with pytest.raises(paml.SettingsError, match=f"cannot be ordered by '{by}'; this run knows {names}$"):
            check_order(by, known)
