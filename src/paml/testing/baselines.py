"""What holds for every baseline, whoever wrote it: it predicts, and reads nothing that it must not know."""

from dataclasses import replace
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
import torch

from paml.baselines import Fitted, SplitRows, find_baseline
from paml.data.dataset import Dataset
from paml.episodes.tasks import Known, Tasks
from paml.evaluation.blinding import BlindedDataset
from paml.evaluation.ranking import quality
from paml.testing.worlds import changed_world, small_world, sparse_world

SHOTS = (None, 0, 1, 5)
CONSTANTS = {"rating": "training_mean", "click": "constant_rate"}


@cache
def fitted(name: str, kind: str) -> Fitted:
    """A baseline, fitted once for all tests, as in a comparison: without the test users."""
    baseline = find_baseline(name)
    return baseline.fit(BlindedDataset(small_world(kind), "targets" if baseline.reference else "all"), seed=3)


def predictions(found: Fitted, rows: SplitRows) -> np.ndarray:
    """The predictions of a baseline that predicts."""
    assert found.predictor is not None, "it predicts"
    return found.predictor.predict(rows)


class BaselineSuite:
    """A baseline that predicts targets, by its `name`, on a `kind` of target."""

    name: ClassVar[str] = ""
    kind: ClassVar[str] = "rating"

    @pytest.fixture
    def case(self) -> tuple[str, str]:
        """Kind of target and name; paml's own tests give several."""
        return self.kind, self.name

    def test_predictions_are_on_the_scale_for_any_number_of_ratings(self, case: tuple[str, str]) -> None:
        """A prediction for every query row, finite, from nothing known to everything known."""
        kind, name = case
        data = small_world(kind)
        test, target = SplitRows.of(data, "test"), data.schema.target
        for rows in (test if shots is None else test.with_shots(shots) for shots in SHOTS):
            prediction_N = predictions(fitted(name, kind), rows)
            assert prediction_N.shape == rows.item_N.shape
            prediction_Q = prediction_N[rows.query_N]
            assert np.isfinite(prediction_Q).all()
            assert prediction_Q.min() >= target.low
            assert prediction_Q.max() <= target.high

    def test_beats_a_constant(self, case: tuple[str, str]) -> None:
        """Otherwise nothing is learned."""
        kind, name = case
        test, target = SplitRows.of(small_world(kind), "test"), small_world(kind).schema.target
        loss, constant = (test.loss(target, predictions(fitted(who, kind), test)) for who in (name, CONSTANTS[kind]))
        assert loss < constant or name == CONSTANTS[kind]

    def test_settings_are_the_best_tried_on_validation_users(self, case: tuple[str, str]) -> None:
        """The loss of each setting is recorded, and the best is what is used."""
        kind, name = case
        found, target = fitted(name, kind), small_world(kind).schema.target
        validation = SplitRows.of(small_world(kind), "validation")
        best = min(found.tried, key=lambda entry: float(entry["loss"]))
        assert found.chosen == {key: value for key, value in best.items() if key != "loss"}
        assert validation.loss(target, predictions(found, validation)) == pytest.approx(best["loss"], abs=1e-9)
        assert found.seconds > 0

    def test_fitting_is_repeatable_and_never_sees_test_users(self, case: tuple[str, str]) -> None:
        """Test users who rated other items, and differently, change nothing."""
        kind, name = case
        other, test = find_baseline(name).fit(changed_world(kind), seed=3), SplitRows.of(small_world(kind), "test")
        for rows in (test, test.with_shots(0)):
            assert np.array_equal(predictions(other, rows), predictions(fitted(name, kind), rows))

    def test_targets_of_query_rows_and_of_hidden_support_rows_change_nothing(self, case: tuple[str, str]) -> None:
        """Only known support rows are read."""
        kind, name = case
        target = small_world(kind).schema.target
        test = SplitRows.of(small_world(kind), "test").with_shots(4)
        mirrored_N = target.low + target.high - test.target_N
        other = replace(test, target_N=np.where(test.support_N, test.target_N, mirrored_N))
        found, changed = (predictions(fitted(name, kind), rows)[test.query_N] for rows in (test, other))
        assert np.array_equal(found, changed)

    def test_items_without_training_rows_and_no_validation_users(self, case: tuple[str, str]) -> None:
        """New items have predictions, too, and without validation users the first setting is used."""
        kind, name = case
        data = sparse_world(kind)
        test = SplitRows.of(data, "test")
        unknown_N = ~np.isin(test.item_N, SplitRows.of(data, "train").item_N)
        assert (unknown_N & test.query_N).any()
        assert (unknown_N & test.support_N).any()
        assert np.isfinite(predictions(find_baseline(name).fit(data), test)[test.query_N]).all()


def scores(found: Fitted, data: Dataset, shots: int | None, users: int = 512) -> torch.Tensor:
    """The scores of all items for the test users, `users` at a time."""
    assert found.ranker is not None, "it ranks"
    rank = found.ranker.rank(data)
    batches = Tasks.of(data, "test").stored(users, shots)
    return torch.cat([rank(Known(batch.user_B, batch.support)) for batch in batches])


class RankerSuite:
    """A baseline that ranks the whole catalogue, by its `name`, on a `kind` of target."""

    name: ClassVar[str] = ""
    kind: ClassVar[str] = "rating"

    @pytest.fixture
    def case(self) -> tuple[str, str]:
        """Kind of target and name; paml's own tests give several."""
        return self.kind, self.name

    def test_scores_of_all_items_are_finite_for_any_number_of_ratings(self, case: tuple[str, str]) -> None:
        """One score per user and item, the same every time, though query rows cannot be read."""
        kind, name = case
        data = BlindedDataset(small_world(kind), "items")
        for shots in SHOTS:
            found = scores(fitted(name, kind), data, shots)
            assert found.shape == (len(Tasks.of(data, "test")), data.manifest.items)
            assert torch.isfinite(found).all()
            assert torch.equal(found, scores(fitted(name, kind), data, shots))

    def test_fitting_is_repeatable_and_never_sees_test_users(self, case: tuple[str, str]) -> None:
        """Test users who rated other items, and differently, change nothing."""
        kind, name = case
        other = find_baseline(name).fit(changed_world(kind), seed=3)
        assert other.chosen == fitted(name, kind).chosen
        for shots in SHOTS:
            left, right = (scores(found, small_world(kind), shots) for found in (other, fitted(name, kind)))
            assert torch.equal(left, right)

    def test_blocks_equal_one_user_at_a_time(self, case: tuple[str, str]) -> None:
        """Other users do not matter."""
        kind, name = case
        for shots in SHOTS:
            together, alone = (scores(fitted(name, kind), small_world(kind), shots, users) for users in (512, 1))
            assert torch.allclose(together, alone, atol=1e-5)

    def test_settings_are_the_best_tried_on_validation_users(self, case: tuple[str, str]) -> None:
        """The quality of each setting is recorded, and the best is what is used."""
        kind, name = case
        found, data = fitted(name, kind), small_world(kind)
        best = max(found.tried, key=lambda entry: float(entry["quality"]))
        assert found.ranker is not None
        assert found.chosen == {key: value for key, value in best.items() if key != "quality"}
        assert quality(data, Tasks.of(data, "validation"), found.ranker.rank(data)) == pytest.approx(best["quality"])
        assert found.seconds > 0

    def test_ranks_better_than_chance(self, case: tuple[str, str]) -> None:
        """Otherwise nothing is learned."""
        kind, name = case
        data, found = small_world(kind), fitted(name, kind)
        tasks, generator = Tasks.of(data, "test"), torch.Generator().manual_seed(0)
        chance = quality(
            data, tasks, lambda known: torch.rand(len(known.user_B), data.manifest.items, generator=generator)
        )
        assert found.ranker is not None
        assert quality(data, tasks, found.ranker.rank(data)) > chance

    def test_items_without_training_rows_and_no_validation_users(self, case: tuple[str, str]) -> None:
        """New items have scores, too, and without validation users the first setting is used."""
        kind, name = case
        data = sparse_world(kind)
        assert not data.interacted_in_training().all()
        found = find_baseline(name).fit(data)
        assert len(found.tried) == 1
        assert np.isnan(float(found.tried[0]["quality"]))
        assert torch.isfinite(scores(found, data, None)).all()
