"""What holds for every method, whoever wrote it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
import torch

from paml.data.dataset import Dataset
from paml.episodes.batches import Loader
from paml.episodes.tasks import Tasks
from paml.evaluation.scoring import predict_rows
from paml.methods.registry import find_method, origins_of
from paml.recommend.requests import NewUser, Rating
from paml.testing.learners import deviation, gradients, make
from paml.testing.oracle import Oracle
from paml.testing.worlds import small_world
from paml.training import checkpoint
from paml.training.run import Run
from paml.training.train import train

QUICK: dict[str, Any] = {
    "epochs": 2,
    "ensemble_size": 1,
    "hidden": (16, 8),
    "embedding_size": 8,
    "item_embedding": 8,
    "memory_size": 150,
    "choice_part": False,
}
"""Settings of a training that takes a second."""
TOLERANCE = 1e-8
PARTS = ("weights.safetensors", "choice/weights.safetensors", "preference.safetensors")


def weights_of(run: Run) -> dict[str, torch.Tensor]:
    """The tensors of all parts of a run."""
    files = [file for file in PARTS if (run.path / file).exists()]
    return {f"{file} {name}": found for file in files for name, found in checkpoint.load(run.path / file)[0].items()}


def same_weights(one: Run, other: Run) -> bool:
    """Whether two runs have equal tensors, bit by bit."""
    left, right = weights_of(one), weights_of(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def scores_of(run: Run, data: Dataset) -> torch.Tensor:
    """What the lists of some test users are ordered by, in every way that the run knows."""
    batch = next(Tasks.of(data, "test").stored(20))
    ways = [*(["rating"] if run.rater is not None else []), *(["choice", "preference"] if run.chooser else [])]
    return torch.stack([run.rank(data, by)(batch) for by in ways])  # type: ignore[arg-type]


def check_saved(run: Run, data: Dataset, epochs: int) -> None:
    """A run evaluates to the same rows every time, saved and loaded again; it has left nothing half-done."""
    rows, score = run.evaluate(), scores_of(run, data)
    assert score.isfinite().all(), "scores are finite"
    again = Run.load(run.path)
    assert again.evaluate().equals(rows), "a reloaded run has other rows"
    assert torch.equal(scores_of(again, data), score), "a reloaded run has other scores"
    assert run.evaluate().equals(rows), "evaluation changes the run"
    first, end = data.manifest.splits["test"]
    assert len(rows) == end - first
    for folder in (run.path, *([run.path / "choice"] if run.choice is not None else [])):
        assert not (folder / "resume").exists()
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in lines] == list(range(1, epochs + 1))


class Stop(Exception):  # noqa: N818, it is no error
    """Ends a training after an epoch."""


def resumed(data: Dataset, method: str, out: Path, settings: Mapping[str, Any]) -> Run:
    """A run whose training was stopped after the first epoch, and resumed."""

    def stop(epoch: int, value: float | None) -> None:
        raise Stop

    with pytest.raises(Stop):
        train(data, method, out=out, settings=settings, progress=False, on_epoch=stop)
    return train(data, method, out=out, settings=settings, progress=False, reuse=True)


def new_users_of(data: Dataset, count: int) -> tuple[list[NewUser], list[list[str]]]:
    """Test users as new users: profile and support ratings as text and numbers, and the items of their query rows."""
    first, end = data.manifest.splits["test"]
    users = data.users().slice(first, min(count, end - first)).collect()
    ids = data.items().select("item").collect()["item"]
    rows = data.interactions().filter(pl.col("user").is_between(first, first + len(users) - 1)).collect()
    rows = rows.with_columns(item=ids.gather(rows["item"]))
    new_users, queries = [], []
    for number, profile in enumerate(users.select(field.name for field in data.schema.user).to_dicts()):
        own = rows.filter(pl.col("user") == first + number)
        support, query = own.filter(~pl.col("query")), own.filter(pl.col("query"))
        ratings = [Rating(item, value) for item, value in support.select("item", "target").iter_rows()]
        new_users.append(NewUser(profile, ratings))
        queries.append(query["item"].to_list())
    return new_users, queries


class MethodSuite:
    """A method by its `name`; `oracle` writes it down plainly, `settings` make its training short."""

    name: ClassVar[str] = ""
    oracle: ClassVar[type[Oracle]] = Oracle
    settings: ClassVar[Mapping[str, Any]] = QUICK

    @pytest.fixture
    def method(self) -> str:
        """The name; paml's own tests give several."""
        return self.name

    def test_trains_saves_and_repeats(self, method: str, tmp_path: Path) -> None:
        """The same seed gives the same weights, another seed others; what is saved is what was trained."""
        data = small_world()
        run = train(data, method, out=tmp_path / "a", settings=self.settings, progress=False)
        check_saved(run, data, self.settings["epochs"])
        assert run.settings.packages == {origin.package: origin.version for origin in origins_of(method)}
        again = train(data, method, out=tmp_path / "b", settings=self.settings, progress=False)
        assert same_weights(run, again), "the same seed gives other weights"
        other = train(data, method, out=tmp_path / "c", seed=1, settings=self.settings, progress=False)
        assert not same_weights(run, other), "another seed gives the same weights"

    def test_resumes_to_equal_weights(self, method: str, tmp_path: Path) -> None:
        """A training that was stopped between epochs ends as one that was not."""
        whole = train(small_world(), method, out=tmp_path / "whole", settings=self.settings, progress=False)
        assert same_weights(whole, resumed(small_world(), method, tmp_path / "stopped", self.settings))

    @pytest.mark.parametrize("steps", [0, 1, 3])
    def test_agrees_with_the_oracle(self, method: str, steps: int) -> None:
        """Meta-loss, its gradients and predictions in training and in use, in double precision."""
        learner, batch, recipe = make(small_world(), method, inner_steps=steps)
        loss = find_method(method).objective(recipe)(learner, batch).value
        slow = self.oracle(method, learner, batch, recipe)
        expected = slow.objective()
        assert deviation([loss], [expected]) < TOLERANCE, "another meta-loss"
        assert deviation(gradients(loss, learner), gradients(expected, learner)) < TOLERANCE, "other meta-gradients"
        adaptations = {
            True: learner.adapt_in_training(learner.embed(batch), batch.user_B),
            False: learner.adapt(learner.embed(batch)),
        }
        for training, adapted in adaptations.items():
            whole = learner.head.finish(learner.head.predict(learner.outputs(adapted, batch.query)))
            rows = [row_R[mask.bool()] for row_R, mask in zip(whole, batch.query.mask_BR, strict=True)]
            assert deviation(rows, slow.run(training=training).predictions) < TOLERANCE, "other predictions"

    def test_other_users_and_their_order_do_not_matter(self, method: str) -> None:
        """A user's predictions are the same alone, among others, and among others in another order."""
        learner, _, _ = make(small_world(), method, inner_steps=2)
        loader, tasks = Loader(small_world(), dtype=torch.float64), Tasks.of(small_world(), "test").part(0, 30)

        def losses(size: int) -> dict[int, float]:
            found: dict[int, float] = {}
            for batch in map(loader.load, tasks.stored(size)):
                loss_B = learner.loss(learner.adapt(learner.embed(batch)), batch.query)
                found |= dict(zip(batch.user_B.tolist(), loss_B.tolist(), strict=True))
            return found

        alone = losses(1)
        assert losses(30) == pytest.approx(alone, rel=1e-10)
        assert losses(7) == pytest.approx(alone, rel=1e-10)

    @pytest.mark.parametrize("network", ["hidden layers", "one layer"])
    def test_in_use_it_predicts_as_in_evaluation(self, method: str, network: str, tmp_path: Path) -> None:
        """`run.adapt` and the service answer as evaluation does: also with one layer, where members are joined."""
        data, form = small_world(), {} if network == "hidden layers" else {"hidden": (), "network": "factors"}
        settings = {**self.settings, "epochs": 1, "ensemble_size": 2, **form}
        run = train(data, method, out=tmp_path / "run", settings=settings, progress=False)
        new_users, queries = new_users_of(data, 12)
        tasks = Tasks.of(data, "test").part(0, len(new_users))
        expected_N, rate_U = predict_rows(run.ensemble, Loader(data, run.ensemble.inputs), tasks)
        users = run.predictor.adapt_many(new_users)
        found_Q = np.concatenate([user.predict(items) for user, items in zip(users, queries, strict=True)])
        np.testing.assert_allclose(found_Q, expected_N[tasks.query_mask()], atol=1e-5)
        np.testing.assert_allclose([user.rate for user in users], rate_U, atol=1e-6)
        assert len(users[0].recommend(5)) == 5

    def test_its_search_space_has_settings_that_recipes_accept(self, method: str) -> None:
        """`paml tune` can begin."""
        from paml.experiments.tuning.space import space_for

        assert space_for(method, [])
