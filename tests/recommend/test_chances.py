"""The chance of a click is what people see: as often as they click, though the loss counts a click nine times."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import paml
from paml.episodes.batches import Loader
from paml.episodes.tasks import Tasks
from paml.evaluation.scoring import predict_rows

RunOf = Callable[[str, str], paml.Run]


@pytest.fixture(scope="module")
def rows(run_of: RunOf) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions and labels of the query rows of all users, and how many rows each user has."""
    run = run_of("click", "ridge")
    data, found = run.data(), []
    for split in ("train", "validation", "test"):
        tasks = Tasks.of(data, split)  # type: ignore[arg-type]
        query_N = tasks.query_mask()
        prediction_N, _ = predict_rows(run.ensemble, Loader(data, run.ensemble.inputs), tasks)
        label_N = data.array("target")[int(tasks.offsets[0]) : int(tasks.offsets[-1])]
        found.append((prediction_N[query_N], label_N[query_N], np.diff(tasks.offsets) - tasks.support))
    p_N, label_N, count_U = (np.concatenate(part) for part in zip(*found, strict=True))
    return p_N, label_N, count_U


def test_chances_agree_with_what_is_observed(rows: tuple[np.ndarray, ...]) -> None:
    p_N, label_N, _ = rows
    assert 0.1 < label_N.mean() < 0.25
    assert p_N.mean() == pytest.approx(label_N.mean(), abs=0.04)  # with the weights it would be about 0.5
    half_N = p_N > np.median(p_N)
    for part_N in (half_N, ~half_N):
        assert p_N[part_N].mean() == pytest.approx(label_N[part_N].mean(), abs=0.07)


def test_users_and_lists_have_the_chances_that_evaluation_has(run_of: RunOf) -> None:
    run = run_of("click", "ridge")
    data, tasks = run.data(), Tasks.of(run.data(), "test")
    expected_N, _ = predict_rows(run.ensemble, Loader(data, run.ensemble.inputs), tasks)
    rows, ids = data.interactions().collect(), data.items().collect()["item"]
    profiles = data.users().select(field.name for field in data.schema.user).collect().to_dicts()
    first, end, split = int(tasks.offsets[0]), int(tasks.offsets[1]), int(tasks.offsets[0] + tasks.support[0])
    ratings = [(ids[item], float(y)) for item, y in rows[first:split].select("item", "target").iter_rows()]
    profile = {name: value for name, value in profiles[tasks.first].items() if value is not None}
    user = run.adapt(profile, ratings)
    asked = [ids[item] for item in rows[split:end]["item"]]
    np.testing.assert_allclose(user.predict(asked), expected_N[split - first : end - first], atol=1e-5)
    best = user.recommend(5, by="rating")
    np.testing.assert_allclose([one.score for one in best], user.predict([one.item for one in best]), atol=1e-6)


def test_the_loss_of_evaluation_is_that_of_training(run_of: RunOf) -> None:
    """NEL is the weighted loss: what a member's own softmax gives, whatever people see."""
    run = run_of("click", "ridge")
    data, tasks = run.data(), Tasks.of(run.data(), "test")
    loader, losses = Loader(data, run.ensemble.inputs), []
    with torch.no_grad():
        for task_batch in tasks.stored(64):
            batch = loader.load(task_batch)
            members = run.ensemble.members
            parts = [m.head.predict(m.outputs(m.adapt(m.embed(batch)), batch.query)) for m in members]
            q_BR, y_BR, mask_BR = torch.stack(parts).mean(dim=0), batch.query.y_BR, batch.query.mask_BR
            entropy_BR = torch.where(y_BR > 0, -0.9 * q_BR.log(), -0.1 * (1 - q_BR).log()) * mask_BR
            losses.append(entropy_BR.sum(dim=1) / mask_BR.sum(dim=1))
    expected = float(torch.cat(losses).mean())
    assert paml.summarise(run.evaluate())["nel"]["all"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", ["ridge", "reg_paml"])
def test_effects_sum_to_the_change_of_the_chance(run_of: RunOf, method: str) -> None:
    run = run_of("click", method)
    ratings = {"3": 1, "7": 0, "11": 1}
    user, before = run.adapt(ratings=ratings), run.adapt()
    for item in ("20", "33"):
        effects = [reason.effect for reason in user.why(item, n=3, by="rating")]
        assert sum(effects) == pytest.approx(user.predict([item])[0] - before.predict([item])[0], abs=1e-5)
