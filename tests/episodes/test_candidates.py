"""The items of a training batch: all of them, or a sample whose log chances correct the sum of the softmax."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import paml
from paml.episodes import candidates
from paml.episodes.batches import Loader
from paml.episodes.candidates import Candidates
from paml.episodes.tasks import Tasks
from paml.methods.objectives import query_loss
from paml.testing.learners import deviation, gradients, make_choice


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the catalogue were too large to be a batch."""
    monkeypatch.setattr(candidates, "MAX_EXACT", 10)


def test_all_items_of_a_small_catalogue_are_candidates(world: paml.Dataset) -> None:
    item_BL = np.array([[3, 7], [7, 79]])
    item_N, index_BL, log_chance_N = Candidates(world, 5).draw(item_BL)
    assert np.array_equal(item_N, np.arange(80))
    assert np.array_equal(index_BL, item_BL)
    assert log_chance_N is None


@pytest.mark.usefixtures("large")
def test_more_draws_than_items_are_all_items(world: paml.Dataset) -> None:
    assert Candidates(world, 80).draw(np.array([[3]]))[2] is None
    assert Candidates(world, 79).draw(np.array([[3]]))[2] is not None


@pytest.mark.usefixtures("large")
def test_a_sample_has_the_items_of_its_rows_and_repeats_for_the_same_rows(world: paml.Dataset) -> None:
    drawing, item_BL = Candidates(world, 20), np.array([[3, 7], [7, 79]])
    item_N, index_BL, log_chance_N = drawing.draw(item_BL)
    assert np.array_equal(item_N, np.unique(item_N))
    assert np.array_equal(item_N[index_BL], item_BL)
    assert 3 <= len(item_N) <= 23
    assert log_chance_N is not None
    assert ((log_chance_N < 0) & log_chance_N.isfinite()).all()
    again_N, _, chance_N = Candidates(world, 20).draw(item_BL.copy())
    assert np.array_equal(again_N, item_N)
    assert torch.equal(chance_N, log_chance_N)
    assert np.array_equal(drawing.draw(np.asfortranarray(item_BL))[0], item_N)  # whatever the layout in memory
    others = [drawing.draw(np.array([[3, 7], [7, other]]))[0] for other in range(8, 20)]
    assert len({tuple(np.setdiff1d(item_N, [3, 7, 79])) for item_N in others}) > 6


@pytest.mark.usefixtures("large")
def test_the_corrected_sum_of_the_softmax_is_unbiased(world: paml.Dataset) -> None:
    """Rows as often as in training: the mean of sum exp(out) / chance over many batches is the sum over all items."""
    rng, drawing = np.random.default_rng(0), Candidates(world, 20)
    row_item_N = world.array("item")[: world.training_rows]
    weight_I = np.exp(rng.normal(size=80))
    sums, counts_I, chance_I = [], np.zeros(80), np.full(80, np.nan)
    batches = 4000
    for _ in range(batches):
        item_N, _, log_chance_N = drawing.draw(rng.choice(row_item_N, size=(3, 4)))
        assert log_chance_N is not None
        chance_N = log_chance_N.exp().numpy()
        sums.append((weight_I[item_N] / chance_N).sum())
        counts_I[item_N] += 1
        chance_I[item_N] = chance_N
    error = np.std(sums) / batches**0.5
    assert np.mean(sums) == pytest.approx(weight_I.sum(), abs=4 * error)
    assert error < 0.02 * weight_I.sum()
    spread_I = np.sqrt(chance_I * (1 - chance_I) / batches)
    assert (np.abs(counts_I / batches - chance_I) < 5 * spread_I).all()  # item by item


@pytest.mark.usefixtures("large")
def test_popular_items_are_drawn_more_often(world: paml.Dataset) -> None:
    drawing = Candidates(world, 20)
    every_I = np.concatenate([drawing.draw(np.array([[item]]))[0] for item in range(80)])
    count_I = np.bincount(every_I, minlength=80)
    rows_I = np.bincount(world.array("item")[: world.training_rows], minlength=80)
    assert np.corrcoef(count_I, np.sqrt(rows_I + 1))[0, 1] > 0.6
    assert count_I.min() > 0


def test_a_sample_of_chance_one_equals_all_items(world: paml.Dataset) -> None:
    for method in ("melu", "ridge"):
        learner, batch, _ = make_choice(world, method, inner_steps=2)
        certain = replace(batch, log_chance_N=torch.zeros(len(batch.item_N), dtype=torch.float64))
        left, right = (query_loss(learner, one).value for one in (batch, certain))
        torch.testing.assert_close(left, right, rtol=1e-14, atol=0.0)  # rows have one entry more: sums in another order
        assert deviation(gradients(left, learner), gradients(right, learner)) < 1e-15


def test_equal_chances_of_all_items_change_nothing(world: paml.Dataset) -> None:
    learner, batch, _ = make_choice(world, "melu", inner_steps=2)
    equal = replace(batch, log_chance_N=torch.full((len(batch.item_N),), -1.0, dtype=torch.float64))
    torch.testing.assert_close(query_loss(learner, batch).value, query_loss(learner, equal).value)


@pytest.mark.usefixtures("large")
def test_the_loader_refers_to_the_items_of_the_sample(world: paml.Dataset) -> None:
    """Without candidates a batch has the items of its rows; for ranking, whatever the training, all of them."""
    tasks = Tasks.of(world, "train")
    plain, drawn = (
        Loader(world, candidates=given).load(next(tasks.stored(2))) for given in (None, Candidates(world, 10))
    )
    for block, other in ((plain.support, drawn.support), (plain.query, drawn.query)):
        assert torch.equal(plain.item_N[block.index_BR], drawn.item_N[other.index_BR])
        assert torch.equal(block.y_BR, other.y_BR)
    assert plain.log_chance_N is None
    assert drawn.log_chance_N is not None
    assert len(drawn.log_chance_N) == len(drawn.item_N) == drawn.items.count > len(plain.item_N)
    assert drawn.log_chance_N.dtype == torch.float32
    assert len(Loader(world, candidates=Candidates(world, 10)).all_items()[1]) == 80
