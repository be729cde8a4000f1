"""Lists over the whole catalogue: judged by hand on a small data set, and by identities."""

import math

import numpy as np
import polars as pl
import pytest
import torch

import paml
from paml.data.schema import Target, liked_level
from paml.episodes.histories import Histories
from paml.episodes.tasks import Known, Tasks
from paml.evaluation import ranking
from paml.evaluation.ranking import Lists, rank_users


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return paml.prepare("synthetic", out=tmp_path_factory.mktemp("ranking") / "world", users=120, items=60, seed=4)


def by_noise(items: int, seed: int = 0):
    def rank(known: Known) -> torch.Tensor:
        return torch.stack(
            [torch.rand(items, generator=torch.Generator().manual_seed(seed + int(u))) for u in known.user_B]
        )

    return rank


def slowly(data, tasks: Tasks, rank, shots, liked: float):
    """One user at a time, as one would write it down: list, relevant items, rank of the first."""
    item, target = data.array("item"), data.array("target")
    for u in range(len(tasks)):
        start, end = int(tasks.offsets[u]), int(tasks.offsets[u + 1])
        support = set(item[start : start + int(tasks.support[u])].tolist())
        score = rank_one(tasks, rank, u, shots)
        order = [i for i in np.argsort(-score, kind="stable").tolist() if i not in support]
        query = range(start + int(tasks.support[u]), end)
        relevant = {int(item[row]) for row in query if target[row] >= liked} - support
        yield order, relevant


def rank_one(tasks: Tasks, rank, u: int, shots) -> np.ndarray:
    batch = next(b for b in tasks.part(u, 1).stored(1, shots))
    return rank(Known(batch.user_B, batch.support))[0].numpy()


@pytest.mark.parametrize("shots", [None, 0, 3])
def test_lists_agree_with_one_user_at_a_time(data, shots):
    tasks, rank = Tasks.of(data, "test"), by_noise(60)
    lists = rank_users(data, tasks, rank, shots)
    gain, recalled = ranking.discounted_gain(lists, 10), ranking.recall(lists, 20)
    first = ranking.reciprocal_rank(lists)
    for u, (order, relevant) in enumerate(slowly(data, tasks, rank, shots, 4.0)):
        assert lists.item_UL[u].tolist() == order[:20]
        if not relevant:
            assert math.isnan(gain[u])
            assert math.isnan(recalled[u])
            continue
        dcg = sum(1 / math.log2(2 + place) for place, item in enumerate(order[:10]) if item in relevant)
        ideal = sum(1 / math.log2(2 + place) for place in range(min(10, len(relevant))))
        assert gain[u] == pytest.approx(dcg / ideal)
        assert recalled[u] == pytest.approx(len(relevant & set(order[:20])) / min(20, len(relevant)))
        assert first[u] == pytest.approx(1 / (1 + min(order.index(item) for item in relevant)))


@pytest.mark.parametrize("shots", [None, 8, 17])
def test_users_without_more_ratings_keep_their_lists(data, shots):
    """The same lists, and only users whose support sets are cut are scored."""
    tasks, rank, scored = Tasks.of(data, "test"), by_noise(60), []

    def counting(known: Known) -> dict[str, torch.Tensor]:
        scored.extend(known.user_B.tolist())
        return {"": rank(known)}

    whole = {"": rank_users(data, tasks, rank)}
    found = ranking.rank_by_all(data, tasks, ranking.Orders(("",), counting), shots, None, whole)[""]
    expected = rank_users(data, tasks, rank, shots)
    for name in ("item_UL", "rated_UL", "relevant_UL", "relevant_U", "first_U"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    cut = np.flatnonzero(tasks.support > shots) if shots is not None else np.zeros(0, dtype=int)
    assert sorted(scored) == (cut + tasks.first).tolist()
    assert len(cut) < len(tasks)


def test_blocks_do_not_matter(data, monkeypatch):
    tasks, rank = Tasks.of(data, "test"), by_noise(60)
    whole = rank_users(data, tasks, rank)
    monkeypatch.setattr(ranking, "CELLS_AT_ONCE", 180)  # three users at a time
    some = rank_users(data, tasks, rank)
    for name in ("item_UL", "rated_UL", "relevant_UL", "relevant_U", "first_U"):
        assert np.array_equal(getattr(whole, name), getattr(some, name))


def test_the_ranker_sees_no_query_row(data):
    seen = []

    def rank(known: Known) -> torch.Tensor:
        seen.append(known)
        return torch.zeros(len(known.user_B), 60)

    tasks = Tasks.of(data, "test")
    rank_users(data, tasks, rank, 2)
    assert all(not hasattr(known, "query") and known.support.row_BL.shape[1] <= 2 for known in seen)


def test_equal_scores_count_half(data):
    lists = rank_users(data, Tasks.of(data, "test"), lambda known: torch.zeros(len(known.user_B), 60))
    support_U = np.asarray(Tasks.of(data, "test").support)
    expected_U = 1 + (60 - support_U - 1) // 2  # among all candidates, whichever are relevant
    known = lists.relevant_U > 0
    assert np.array_equal(lists.first_U[known], expected_U[known])


def lists_of(*items: list[int]) -> Lists:
    """Lists by hand; even items are relevant, those below 10 rated."""
    item_UL = np.array(items)
    relevant_UL = (item_UL % 2 == 0) & (item_UL >= 0) & (item_UL < 10)
    first_U = np.array([1, 1])
    return Lists(item_UL, (item_UL < 10) & (item_UL >= 0), relevant_UL, relevant_UL.sum(axis=1), first_U)


def test_what_lists_hold():
    lists = lists_of([2, 3, 12], [5, 4, -1])
    assert ranking.liked_share(lists, 3).tolist() == [0.5, 0.5]
    assert ranking.mean_over_list(lists, np.arange(20.0), 3).tolist() == [17 / 3, 4.5]
    count = ranking.exposure(lists, 20, 3)
    assert count.sum() == 5
    assert ranking.gini(np.ones(7, dtype=int)) == pytest.approx(0)
    assert ranking.gini(np.eye(1, 100, dtype=int)[0]) == pytest.approx(0.99)
    assert math.isnan(ranking.gini(np.zeros(3, dtype=int)))


def test_diversity_is_one_minus_the_mean_cosine():
    lists = lists_of([2, 3, 12], [5, 4, -1])
    content = {2: [0, 1], 3: [1], 12: [7, 8], 5: [3], 4: [3]}
    per_item = [content.get(item, []) for item in range(20)]
    codes = np.array([code for codes in per_item for code in codes])
    counts = np.array([len(codes) for codes in per_item])
    assert ranking.diversity(lists, codes, counts, 3) == pytest.approx([1 - (1 / math.sqrt(2)) / 3, 0.0])


def test_liked_level(data):
    target = data.schema.target
    assert liked_level(target) == 4.0
    assert liked_level(target.model_copy(update={"low": 1.0, "high": 10.0})) == 8.0
    assert liked_level(target.model_copy(update={"low": 0.5, "high": 5.0, "step": 0.5})) == 4.0


def test_a_level_may_be_written_with_fewer_digits() -> None:
    sevenths = Target(kind="rating", low=0, high=1, step=1 / 7)
    assert ranking.relevant_level(sevenths, 0.857143) == ranking.relevant_level(sevenths) == 6 * sevenths.step
    tenths = Target(kind="rating", low=0, high=5, step=0.1)
    assert ranking.relevant_level(tenths, 3.8) == ranking.relevant_level(tenths) == 3.8000000000000003
    assert ranking.relevant_level(tenths, 3.85) == 3.85  # between two levels: all from the next one on
    wide = Target(kind="rating", low=1_000_000, high=1_000_100, step=1)
    assert ranking.relevant_level(wide, 1_000_075) == ranking.relevant_level(wide) == 1_000_075


def test_a_level_that_is_stored_with_fewer_digits_is_reached(tmp_path) -> None:
    """Five sixths are 0.833333 in a file, which is less."""
    rows = [(u, i, round(((u + i) % 7) / 6, 6)) for u in range(60) for i in range(14)]
    log = pl.DataFrame(rows, ["user", "item", "rating"], orient="row")
    schema = {
        "target": {"kind": "rating", "low": 0, "high": 1, "step": 1 / 6},
        "interactions": {"user": "user", "item": "item", "target": "rating"},
    }
    data = paml.prepare(interactions=log, schema=schema, out=tmp_path / "data", cold_share=1)
    tasks = Tasks.of(data, "test")
    found = {
        liked: rank_users(data, tasks, lambda known: torch.zeros(len(known.user_B), 14), liked=liked).relevant_U.sum()
        for liked in (0.8, 0.833333, 5 / 6, None)
    }
    assert found[0.8] == found[0.833333] == found[5 / 6] == found[None] > 0
    liked = (data.array("target")[: data.training_rows] > 0.8).sum()
    assert Histories.of_training(data).liked_I.sum() == liked > 0


@pytest.fixture(scope="module")
def impressions(tmp_path_factory):
    """Clicks, where many items were shown to the same user more than once."""
    rng = np.random.default_rng(0)
    log = pl.DataFrame({"user": rng.integers(0, 120, 6000), "item": rng.integers(0, 40, 6000)})
    log = log.with_columns(clicked=pl.Series(rng.random(6000) < 0.3).cast(pl.Int8))
    schema = {"target": {"kind": "click"}, "interactions": {"user": "user", "item": "item", "target": "clicked"}}
    data = paml.prepare(interactions=log, schema=schema, out=tmp_path_factory.mktemp("clicks") / "data", cold_share=1)
    assert data.manifest.interactions == 6000
    return data


@pytest.mark.parametrize("kind", ["data", "impressions"])
@pytest.mark.parametrize("others", [0.0, -math.inf])
def test_quality_of_the_truth_is_one(kind, others, request):
    """Whatever is known of items that nobody asks for; of several rows of an item, one that is liked is enough."""
    data = request.getfixturevalue(kind)
    tasks, item, target = Tasks.of(data, "test"), data.array("item"), data.array("target")

    def rank(known: Known) -> torch.Tensor:
        score = torch.full((len(known.user_B), data.manifest.items), others)
        for b, u in enumerate(known.user_B - tasks.first):
            for row in range(int(tasks.offsets[u] + tasks.support[u]), int(tasks.offsets[u + 1])):
                score[b, item[row]] = max(float(score[b, item[row]]), float(target[row]))
        return score

    assert ranking.quality(data, tasks, rank) == pytest.approx(1.0)


def test_items_without_a_score_come_last(data):
    """A ranker that scores few items misses the others."""
    tasks, popular = Tasks.of(data, "test"), torch.arange(60) < 8

    def rank(others: float):
        return lambda known: torch.where(popular, 60.0 - torch.arange(60), others).expand(len(known.user_B), -1)

    zeros, nothing = (rank_users(data, tasks, rank(others)) for others in (0.0, -math.inf))
    assert np.array_equal(zeros.relevant_U, nothing.relevant_U)
    np.testing.assert_array_equal(ranking.discounted_gain(zeros, 8), ranking.discounted_gain(nothing, 8))
