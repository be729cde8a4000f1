"""Baselines that rank the whole catalogue: what holds for all of them, and identities of each."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import paml
from paml.baselines import BASELINES, Fitted, baselines_for, item_item, rankers_for
from paml.baselines.item_item import Autoencoder, ItemWeights, covered_items, fit_edlae
from paml.baselines.lenskit_ranking import FoldedIn, Neighbours, Summed, _dataset
from paml.baselines.popularity import Popularity, ProfilePopularity
from paml.data.schema import Target, liked_level
from paml.episodes.histories import Histories, counts_alike, row_weights
from paml.episodes.tasks import Block, Known, Tasks
from paml.evaluation.ranking import quality, rank_users
from paml.testing import RankerSuite, small_world
from paml.testing.baselines import fitted, scores

CASES = [(kind, name) for kind in ("rating", "click", "choice") for name in rankers_for(kind)]


class WithoutProfiles(paml.Dataset):
    """Nothing is known about test users but their rows."""

    def __init__(self, data: paml.Dataset) -> None:
        super().__init__(data.path, data.manifest)

    def array(self, name: str) -> np.ndarray:
        array = super().array(name)
        if not name.startswith("user.") or name.endswith(".offsets"):
            return array
        array = array.copy()
        array[self.manifest.splits["test"][0] :] = 0
        return array


def blocks(data: paml.Dataset, shots: int | None, users: int = 512) -> list[Known]:
    return [Known(batch.user_B, batch.support) for batch in Tasks.of(data, "test").stored(users, shots)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(case))
class TestContract(RankerSuite):
    """Every baseline that ranks keeps the contract that others' baselines are held to, and two more."""

    def test_a_user_about_whom_nothing_is_known_gets_what_is_popular(self, case: tuple[str, str]) -> None:
        kind, name = case
        data = WithoutProfiles(small_world(kind))
        found = scores(fitted(name, kind), data, 0)
        assert (found == found[0]).all()
        if name in {"popular_profile", "edlae"}:
            return  # those without a profile may like other things than the rest
        popular = scores(fitted("popular", kind), data, 0)
        assert torch.equal(found[0].argsort(stable=True), popular[0].argsort(stable=True))

    def test_nobody_liked_anything(self, case: tuple[str, str], tmp_path: Path) -> None:
        kind, name = case
        data = small_world(kind)
        folder = Path(shutil.copytree(data.path, tmp_path / "disliked"))
        np.save(folder / "arrays" / "target.npy", np.full_like(data.array("target"), data.schema.target.low))
        disliked = paml.open_data(folder)
        assert torch.isfinite(scores(BASELINES[name].fit(disliked), disliked, None)).all()


def test_a_large_catalogue_is_tuned_by_some_validation_users(world: paml.Dataset, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("paml.baselines.rows.CELLS_FOR_TUNING", 10 * world.manifest.items)
    result = BASELINES["popular"].fit(world)
    assert result.ranker is not None
    some = quality(world, Tasks.of(world, "validation").part(0, 10), result.ranker.rank(world))
    assert result.tried == [{"quality": pytest.approx(some)}]


def test_rankers_are_listed_apart_from_predictors() -> None:
    assert not set(baselines_for("rating")) & set(rankers_for("rating"))
    assert set(rankers_for("rating")) == set(rankers_for("click")) == set(rankers_for("choice"))
    assert not baselines_for("choice")
    assert all(BASELINES[name].ranks for name in rankers_for("click"))


def test_weights_by_level() -> None:
    five, ten = Target(kind="rating", low=1, high=5), Target(kind="rating", low=0, high=10)
    click = Target(kind="click")
    assert row_weights(five, "graded", np.arange(1.0, 6.0)).tolist() == pytest.approx([0.2, 0.5, 1, 1.3, 1.6])
    assert row_weights(five, "liked", np.arange(1.0, 6.0)).tolist() == [0, 0, 0, 1, 1]
    assert row_weights(ten, "graded", np.array([0.0, 5.0, 10.0])).tolist() == pytest.approx([0.2, 1, 1.6])
    assert row_weights(ten, "graded", np.array([1.25])).tolist() == pytest.approx([0.35])
    choice = Target(kind="choice", high=5)
    assert row_weights(choice, "graded", np.array([1.0, 3.0, 5.0])).tolist() == pytest.approx([1, 1.3, 1.6])
    assert row_weights(choice, "preferred", np.array([1.0, 5.0])).tolist() == [1, 1]
    assert [counts_alike(one) for one in (five, click, choice, Target(kind="choice"))] == [False, True, False, True]
    for name in ("all", "graded", "liked", "preferred"):
        assert row_weights(click, name, np.array([0.0, 1.0])).tolist() == [0, 1]


def test_an_item_that_a_user_has_twice_counts_once_with_the_larger_weight() -> None:
    target = Target(kind="rating", low=1, high=5)
    rows = Histories(target, 2, 3, np.array([1, 0, 1, 1]), np.array([2, 0, 2, 1]), np.array([5.0, 3.0, 1.0, 2.0]))
    assert rows.matrix("graded").toarray().tolist() == [[1, 0, 0], [0, 0.5, pytest.approx(1.6)]]
    assert rows.liked_I.tolist() == [0, 0, 1]
    assert rows.of_users(np.array([False, True])).matrix("all").toarray().tolist() == [[0, 1, 1]]


def test_popularity_counts_training_users_who_liked_the_item(world: paml.Dataset) -> None:
    item, target = (world.array(name)[: world.training_rows] for name in ("item", "target"))
    liked = np.bincount(item[target >= liked_level(world.schema.target)], minlength=world.manifest.items)
    share = Popularity.fit(Histories.of_training(world)).share_I.double().numpy()
    users = world.manifest.splits["train"][1]
    assert share * (users + 1) == pytest.approx(liked + 0.5, rel=1e-5)


def test_popularity_by_a_uniform_profile_is_popularity(world: paml.Dataset, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(world.path, tmp_path / "uniform"))
    for field in world.schema.features("user"):
        np.save(folder / "arrays" / f"user.{field.name}.npy", np.ones_like(world.array(f"user.{field.name}")))
    data = paml.open_data(folder)
    histories = Histories.of_training(data)
    found = ProfilePopularity.fit(data, histories, 20.0, 1.0).log_shares(data, blocks(data, 0)[0])
    # p_v = (n_i + s p_i) / (n + s) differs from p_i = (n_i + 1/2) / (n + 1) by the half user alone
    order = Popularity.fit(histories).share_I.argsort(stable=True)
    assert (found[0][order].diff() >= -1e-5).all()
    assert torch.equal(found, found[:1].expand_as(found))


def test_popularity_by_profile_by_hand(world: paml.Dataset) -> None:
    """Additive in the log shares of each field, one user at a time."""
    strength, weight, histories = 15.0, 0.7, Histories.of_training(world)
    found = ProfilePopularity.fit(world, histories, strength, weight)
    known = blocks(world, 0)[0]
    share_I, liked_UI = Popularity.fit(histories).share_I.numpy(), histories.matrix("liked").toarray()
    for place, user in enumerate(known.user_B[:5]):
        expected_I = np.log(share_I)
        for field in world.schema.features("user"):
            code = world.array(f"user.{field.name}")
            like = code[: len(liked_UI)] == code[user]
            shrunk_I = (liked_UI[like].sum(axis=0) + strength * share_I) / (like.sum() + strength)
            expected_I = expected_I + weight * np.log(shrunk_I / share_I)
        assert found.log_shares(world, known)[place].numpy() == pytest.approx(expected_I, abs=1e-4)


def test_scores_are_linear_in_the_history(world: paml.Dataset) -> None:
    ranker = fitted("edlae", "rating").ranker
    assert isinstance(ranker, Autoencoder)
    known = blocks(world, 6)[0]
    user_B, row_BL = known.user_B[-20:], known.support.row_BL[-20:]  # the longest come last
    rank, every = ranker.rank(world), np.ones((20, 6), dtype=bool)

    def score(mask_BL: np.ndarray) -> torch.Tensor:
        return rank(Known(user_B, Block(row_BL, mask_BL)))

    first = np.arange(6) < 2
    nothing, parts = score(every & False), [score(every & first), score(every & ~first)]
    assert torch.allclose(score(every) - nothing, sum(parts) - 2 * nothing, atol=1e-5)


def test_users_with_few_ratings_have_their_own_weights(world: paml.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    items = np.arange(world.manifest.items)
    profile = ProfilePopularity.fit(world, Histories.of_training(world), 1e9, 0.0)
    few, some, many = (
        ItemWeights("all", items, np.full((len(items),) * 2, value, np.float32)) for value in (1.0, 2.0, 3.0)
    )
    monkeypatch.setattr(item_item, "SOME", item_item.FEW + 3)
    rank, seen = Autoencoder(many, some, few, profile, 0.0).rank(world), set()
    for known in blocks(world, None):
        count_B = torch.from_numpy(known.support.mask_BL.sum(axis=1)).float()
        step_B = 1.0 + (count_B > item_item.FEW) + (count_B > item_item.SOME)
        assert torch.equal(rank(known)[:, 0], step_B * count_B)
        seen |= set(step_B.tolist())
    assert seen == {1.0, 2.0, 3.0}


def test_items_without_training_rows_are_not_covered(world: paml.Dataset) -> None:
    histories = Histories.of_training(world)
    kept_N = histories.item_N != histories.item_N[0]
    fewer = replace(
        histories,
        user_N=histories.user_N[kept_N],
        item_N=histories.item_N[kept_N],
        target_N=histories.target_N[kept_N],
    )
    assert np.setdiff1d(covered_items(histories), covered_items(fewer)).tolist() == [histories.item_N[0]]


def test_a_large_catalogue_is_covered_in_part(world: paml.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_item, "MAX_ITEMS", 30)
    monkeypatch.setattr(item_item, "EDLAE_GRID", item_item.EDLAE_GRID[:1])
    histories = Histories.of_training(world)
    covered = covered_items(histories)
    count_I = np.bincount(histories.item_N, minlength=histories.items)
    others = np.setdiff1d(np.arange(histories.items), covered)
    assert len(covered) == 30
    assert count_I[covered].min() >= count_I[others].max()
    for fit in (fit_edlae, BASELINES["lenskit_ease"].fitting, BASELINES["lenskit_slim"].fitting):
        found = scores(fit(world, 0), world, None)
        assert torch.isfinite(found).all()
        lists = rank_users(world, Tasks.of(world, "test"), fit(world, 0).ranker.rank(world))
        assert np.isin(lists.item_UL[:, :5], covered).mean() > 0.9


@pytest.mark.parametrize("kind", ["rating", "click"])
@pytest.mark.parametrize("name", ["lenskit_implicit_knn", "lenskit_ease", "lenskit_slim", "lenskit_implicit_mf"])
def test_blocks_have_the_scores_of_lenskit(kind: str, name: str) -> None:
    """LensKit trained again with the chosen settings, one user at a time, by its own interface."""
    from lenskit.data import ItemList, RecQuery

    data, result = small_world(kind), fitted(name, kind)
    scorer, item_K = lenskit_scorer(name, data, result)
    rows, known = result.chosen["rows"], blocks(data, None)[0]
    history_BI, found_BI = Histories.of_known(data, known).matrix(rows), result.ranker.rank(data)(known)
    compared = 0
    for user in range(0, len(known.user_B), 5):
        item_L = history_BI.indices[history_BI.indptr[user] : history_BI.indptr[user + 1]]
        item_L = item_L[np.isin(item_L, item_K)]
        if not len(item_L):
            continue
        history = ItemList(item_ids=item_L)
        expected_K = scorer(RecQuery(history_items=history), ItemList(item_ids=item_K)).scores()
        scored_K = np.isfinite(expected_K)
        assert found_BI[user].numpy()[item_K][scored_K] == pytest.approx(expected_K[scored_K], abs=2e-4)
        compared += int(scored_K.sum())
    assert compared > 100


def lenskit_scorer(name: str, data: paml.Dataset, result: Fitted):  # type: ignore[no-untyped-def]
    from lenskit.als import ImplicitMFScorer
    from lenskit.knn import EASEScorer, ItemKNNScorer
    from lenskit.knn.slim import SLIMScorer
    from lenskit.training import TrainingOptions

    chosen, kind = result.chosen, type(result.ranker)
    if name == "lenskit_implicit_knn":
        assert kind is Neighbours
        scorer = ItemKNNScorer(max_nbrs=chosen["neighbours"], feedback="implicit")
    elif name == "lenskit_ease":
        assert kind is Summed
        scorer = EASEScorer(regularization=chosen["ridge"])
    elif name == "lenskit_slim":
        assert kind is Summed
        scorer = SLIMScorer(l1_reg=chosen["l1"], l2_reg=chosen["l2"])
    else:
        assert kind is FoldedIn
        settings = {"regularization": chosen["regularisation"], "weight": chosen["weight"], "epochs": 10}
        scorer = ImplicitMFScorer(embedding_size=chosen["features"], **settings)
    dataset = _dataset(Histories.of_training(data), str(chosen["rows"]), None)
    assert dataset is not None
    scorer.train(dataset, TrainingOptions(rng=3))
    return scorer, np.asarray(scorer.items.ids())


@pytest.mark.parametrize("neighbours", [2, 5, 1000])
def test_neighbours_are_limited_as_in_lenskit(world, neighbours, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from lenskit.data import ItemList, RecQuery

    grid = ({"neighbours": neighbours, "rows": "all"},)
    monkeypatch.setattr("paml.baselines.lenskit_ranking.NEIGHBOUR_GRID", grid)
    ranker = BASELINES["lenskit_implicit_knn"].fit(world).ranker
    assert isinstance(ranker, Neighbours)
    item_K, item_N = ranker.weights.item_K, world.array("item")
    for shots in (1, 4, None):
        known = blocks(world, shots)[0]
        found = ranker.rank(world)(known)
        for user in range(0, len(known.user_B), 7):
            rated = np.unique(item_N[known.support.row_BL[user][known.support.mask_BL[user]]])
            query = RecQuery(history_items=ItemList(item_ids=rated[np.isin(rated, item_K)]))
            expected = np.nan_to_num(ranker.scorer(query, ItemList(item_ids=item_K)).scores())
            assert found[user].numpy()[item_K] == pytest.approx(expected, abs=1e-5)
