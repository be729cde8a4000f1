import numpy as np
import pytest

import paml
from paml.baselines import BiasModel, SplitRows, training_mean
from paml.metrics import per_user_mean, squared_error


def test_metrics_are_per_user() -> None:
    error = squared_error(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 1.0]), np.array([2, 1]))
    assert error.tolist() == [0.5, 4.0]
    assert per_user_mean(np.array([1.0, 2.0, 6.0]), np.array([1, 2])).tolist() == [1.0, 4.0]


def test_training_mean_is_that_of_training_rows(world: paml.PreparedData) -> None:
    end = world.array("offsets")[world.manifest.splits["train"][1]]
    assert training_mean(world, "test")[0] == pytest.approx(world.array("target")[:end].mean())


def test_bias_by_hand() -> None:
    """One item of bias 1 above a mean of 3; a user whose two support rows lie 0.5 above that."""
    model = BiasModel(mean=3.0, item_bias_I=np.array([1.0, 0.0]), user_shrinkage=2.0)
    rows = SplitRows(
        item_N=np.array([0, 1, 0]),
        target_N=np.array([4.5, 3.5, 9.0]),
        user_N=np.array([0, 0, 0]),
        query_N=np.array([False, False, True]),
    )
    assert model.predict(rows)[2] == pytest.approx(3.0 + 1.0 + (0.5 + 0.5) / (2 + 2.0))
    assert rows.query_error(model.predict(rows)) == pytest.approx([(9 - 4.25) ** 2])


def test_query_rows_of_test_users_change_no_prediction(world: paml.PreparedData) -> None:
    test = SplitRows.of(world, "test")
    model = BiasModel.fit(world, 5.0, 5.0)
    changed = np.where(test.query_N, 1.0, test.target_N)
    other = SplitRows(test.item_N, changed, test.user_N, test.query_N)
    assert np.array_equal(model.predict(test), model.predict(other))
