import numpy as np
import pytest
from hypothesis import given, strategies as st

import paml
from paml.episodes.tasks import TaskBatch, Tasks, few_shot_counts


def tasks_of(lengths: np.ndarray) -> Tasks:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Tasks(first=100, offsets=offsets, support=np.maximum(lengths // 2, 1))


def movielens_lengths(users: int, rng: np.random.Generator) -> np.ndarray:
    """The coldest 80 % of users whose number of ratings is distributed as in MovieLens-1M (20 to 2,314, median 96)."""
    lengths = 17 + np.exp(rng.normal(4.24, 1.35, size=users)).clip(3, 2300)
    return rng.permutation(np.sort(lengths.astype(np.int64))[: int(0.8 * users)])


def padding(batches: list[TaskBatch]) -> float:
    rows = sum(batch.support.rows + batch.query.rows for batch in batches)
    return 1 - rows / sum(batch.support.cells + batch.query.cells for batch in batches)


@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=60),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(0, 9),
)
def test_an_epoch_contains_every_row_of_every_user_once(
    lengths: list[int], size: int, random: bool, few: float, seed: int
) -> None:
    tasks = tasks_of(np.array(lengths))
    rng = np.random.default_rng(seed)
    batches = list(tasks.episodes(size, rng, random_support=random, few_shot_share=few))
    assert sorted(np.concatenate([batch.user_B for batch in batches])) == list(range(100, 100 + len(lengths)))
    rows = [block.row_BL[block.mask_BL] for batch in batches for block in (batch.support, batch.query)]
    assert sorted(np.concatenate(rows)) == list(range(sum(lengths)))
    for batch in batches:
        assert few or batch.support.mask_BL.any(axis=1).all()
        assert batch.query.mask_BL.any(axis=1).all()
        for block in (batch.support, batch.query):  # padding also points at the user's own rows
            owner = np.searchsorted(tasks.offsets, block.row_BL, side="right") - 1 + 100
            assert np.array_equal(owner, np.broadcast_to(batch.user_B[:, None], owner.shape))


def test_stored_split_puts_support_rows_first() -> None:
    tasks = tasks_of(np.array([4, 2, 3]))
    batches = list(tasks.stored(2))
    assert [batch.user_B.tolist() for batch in batches] == [[101, 102], [100]]
    assert batches[1].support.row_BL.tolist() == [[0, 1]]
    assert batches[1].query.row_BL.tolist() == [[2, 3]]
    assert batches[0].query.mask_BL.tolist() == [[True, False], [True, True]]


def test_epochs_differ_and_seeds_reproduce_them() -> None:
    tasks = tasks_of(np.full(50, 10))
    rng = np.random.default_rng(0)
    first, second = list(tasks.episodes(8, rng)), list(tasks.episodes(8, rng))
    again = list(tasks.episodes(8, np.random.default_rng(0)))
    assert np.array_equal(first[0].support.row_BL, again[0].support.row_BL)
    assert not np.array_equal(first[0].user_B, second[0].user_B)


def test_support_sets_are_uniform() -> None:
    """Each of five rows is in a support set of two about equally often."""
    tasks = tasks_of(np.full(5000, 5))
    hits = np.zeros(5)
    for batch in tasks.episodes(500, np.random.default_rng(1), support_share=0.4):
        hits += np.bincount(batch.support.row_BL.ravel() % 5, minlength=5)
    assert np.allclose(hits / hits.sum(), 0.2, atol=0.01)


def test_random_support_covers_all_sizes() -> None:
    tasks = tasks_of(np.full(3200, 6))
    sizes = [
        batch.support.mask_BL.sum(axis=1) for batch in tasks.episodes(8, np.random.default_rng(1), random_support=True)
    ]
    assert set(np.concatenate(sizes)) == {1, 2, 3, 4, 5}


def test_few_shots_are_log_uniform_from_none_to_all_but_one() -> None:
    tasks, rng = tasks_of(np.full(40_000, 63)), np.random.default_rng(1)
    batches = tasks.episodes(8, rng, random_support=True, few_shot_share=1.0)
    size_N = np.concatenate([batch.support.mask_BL.sum(axis=1) for batch in batches])
    assert (size_N.min(), size_N.max()) == (0, 62)
    # u log(64) of an exact power of two plus a half: 1 + n < 1.5 for none
    shares = [float(np.mean((size_N >= low) & (size_N < high))) for low, high in ((0, 1), (1, 3), (3, 7), (31, 63))]
    edges = [(0.0, 1.5), (1.5, 3.5), (3.5, 7.5), (31.5, 64.0)]
    expected = [(np.log(high) - np.log(max(low, 1))) / np.log(64) for low, high in edges]
    assert shares == pytest.approx(expected, abs=0.02)


def test_few_shots_grow_with_the_users_rows() -> None:
    rows_B = np.array([2, 5, 20, 1000])
    assert few_shot_counts(rows_B, 0.0).tolist() == [0, 0, 0, 0]
    assert few_shot_counts(rows_B, 0.5).tolist() == [1, 1, 4, 31]
    assert few_shot_counts(rows_B, 0.9999).tolist() == [1, 4, 19, 999]


def test_some_episodes_have_few_shots_and_the_others_a_share() -> None:
    tasks = tasks_of(np.full(8000, 10))
    sizes = [b.support.rows / 8 for b in tasks.episodes(8, np.random.default_rng(2), few_shot_share=0.25)]
    assert np.mean(np.array(sizes) != 8) == pytest.approx(0.25, abs=0.05)


def test_without_few_shots_episodes_are_the_former_ones() -> None:
    """The draws of seed 5, written down before the setting existed: old runs are repeated and resumed bit by bit."""
    fixed = [([104, 103], [4, 5]), ([100, 102], [2, 3]), ([101], [7])]
    random = [([101], [6]), ([100, 102], [1, 2]), ([104, 103], [1, 1])]
    tasks, rng = tasks_of(np.array([3, 9, 4, 6, 5])), np.random.default_rng(5)
    found = [(b.user_B.tolist(), b.support.mask_BL.sum(axis=1).tolist()) for b in tasks.episodes(2, rng)]
    found += [
        (b.user_B.tolist(), b.support.mask_BL.sum(axis=1).tolist())
        for b in tasks.episodes(2, rng, random_support=True, few_shot_share=0.0)
    ]
    assert (found, rng.integers(1000)) == (fixed + random, 355)


@pytest.mark.parametrize("few_shot_share", [0.0, 0.5])
@pytest.mark.parametrize("random_support", [False, True])
def test_padding_is_small_on_movielens_like_lengths(random_support: bool, few_shot_share: float) -> None:
    rng = np.random.default_rng(0)
    tasks = tasks_of(movielens_lengths(6040, rng))
    episodes = tasks.episodes(32, rng, random_support=random_support, few_shot_share=few_shot_share)
    assert padding(list(episodes)) < 0.15
    assert padding(list(tasks.stored(32))) < 0.15


def test_tasks_of_a_split_cover_its_slice(world: paml.Dataset) -> None:
    splits = {name: Tasks.of(world, name) for name in ("train", "validation", "test")}  # type: ignore[arg-type]
    assert sum(map(len, splits.values())) == world.manifest.users
    assert splits["train"].offsets[0] == 0
    assert splits["train"].offsets[-1] == splits["validation"].offsets[0]
    assert splits["test"].offsets[-1] == world.manifest.interactions
    query = world.interactions().collect()["query"].to_numpy()
    for tasks in splits.values():
        for batch in tasks.stored(16):
            assert not query[batch.support.row_BL].any()
            assert query[batch.query.row_BL[batch.query.mask_BL]].all()


def test_episodes_in_order_know_the_first_rows(world: paml.Dataset) -> None:
    tasks = Tasks.of(world, "train")
    for batch in tasks.episodes(8, np.random.default_rng(0), few_shot_share=0.5, in_order=True):
        start_B = np.asarray(tasks.offsets[batch.user_B - tasks.first])
        for start, support, query, known, asked in zip(
            start_B,
            batch.support.row_BL,
            batch.query.row_BL,
            batch.support.mask_BL.sum(axis=1),
            batch.query.mask_BL.sum(axis=1),
            strict=True,
        ):
            assert support[:known].tolist() == list(range(start, start + known))
            assert query[:asked].tolist() == list(range(start + known, start + known + asked))
