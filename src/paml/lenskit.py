"""A trained run as a component of LensKit (2025): in its pipelines, with its splits, metrics and runners.

`PamlScorer` adapts to the history in LensKit's query and scores a list of items; somebody who was never seen is as
welcome as anybody else. `split_of` gives LensKit a prepared data set's own split, so that both packages judge the same
rows.

>>> from lenskit.pipeline import topn_pipeline
>>> from paml.lenskit import PamlScorer, split_of
>>> split = split_of("world")
>>> pipeline = topn_pipeline(PamlScorer(run="run", profiles="world"), n=10, predicts_ratings=True)
>>> pipeline.train(split.train)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import BaseModel, Field as Described, field_validator

from paml.data.dataset import Dataset
from paml.data.schema import liked_level, reaching
from paml.episodes.tasks import Split, Tasks
from paml.errors import SettingsError
from paml.recommend.preference import By
from paml.recommend.requests import Rating, Values
from paml.recommend.user import User
from paml.training.run import Run

try:
    from lenskit.data import Dataset as LensKitDataset, DatasetBuilder, ItemList, ItemListCollection, RecQuery
    from lenskit.data.query import QueryInput
    from lenskit.pipeline import Component
except ImportError:
    raise SettingsError("LensKit is not installed", remedy="pip install 'paml[lenskit]'") from None


class PamlConfig(BaseModel, extra="forbid"):
    """What a scorer is made of; a pipeline's configuration holds it as text."""

    run: Path = Described(description="folder of a trained run, or the run itself")
    profiles: Path | None = Described(
        None, description="prepared data set, or its folder, whose users' profiles are known; otherwise nobody's is"
    )
    by: By | None = Described(
        None, description="what scores are: rating, choice or preference; otherwise what the run orders lists by"
    )

    @field_validator("run", "profiles", mode="before")
    @classmethod
    def _folder(cls, value: object) -> object:
        return value.path if isinstance(value, Run | Dataset) else value


class PamlScorer(Component[ItemList]):
    """Scores items for the user of a query, adapted to the query's items.

    Items of the history that the run does not know count as not rated; items to be scored that it does not know have
    no score (NaN), as LensKit's own scorers do. Ratings come from the list's field `rating`; without it, every item
    counts as clicked or chosen once, and a run of ratings refuses. The run is trained already: LensKit's training
    leaves it as it is.
    """

    config: PamlConfig

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config}  # other processes open the run themselves

    @cached_property
    def run(self) -> Run:
        """The run, opened when it is first needed."""
        return Run.load(self.config.run)

    @cached_property
    def _profiles(self) -> dict[str, Values]:
        """Profiles by user id."""
        if self.config.profiles is None:
            return {}
        data = Dataset.open(self.config.profiles)
        names = [field.name for field in self.run.predictor.fields]
        rows = data.users().select("user", *names).collect().iter_rows(named=True)
        return {row.pop("user"): row for row in rows}

    def __call__(self, query: QueryInput, items: ItemList) -> ItemList:
        """The same items, scored."""
        user, catalogue = self.adapt(RecQuery.create(query)), self.run.predictor.catalogue
        ids = [str(item) for item in items.ids().tolist()]
        known_R = np.array([item in catalogue for item in ids], dtype=bool)
        score_R = np.full(len(ids), np.nan)
        if known_R.any():
            score_R[known_R] = self._scores(user, [item for item in ids if item in catalogue])
        return ItemList(items, scores=score_R)

    def adapt(self, query: RecQuery) -> User:
        """The user of a query, adapted to its items; with a profile, if the user is one whose profile is known."""
        return self.run.adapt(self._profiles.get(str(query.user_id)), self._ratings(query.query_items))

    def _ratings(self, history: ItemList | None) -> list[Rating]:
        if history is None or not len(history):
            return []
        given, target = history.field("rating"), self.run.settings.data_schema.target
        if given is None and target.kind == "rating":
            what = "the query's items have no ratings, and the run was trained on ratings"
            raise SettingsError(what, remedy="give the list a field 'rating'")
        values = np.ones(len(history)) if given is None else given
        catalogue = self.run.predictor.catalogue
        pairs = zip(history.ids().tolist(), np.asarray(values, dtype=np.float64).tolist(), strict=True)
        return [Rating(str(item), value) for item, value in pairs if str(item) in catalogue]

    def _scores(self, user: User, ids: Sequence[str]) -> np.ndarray:
        if self.config.by == "rating":
            return user.predict(ids)
        score_R: np.ndarray = user.scores(by=self.config.by)[user.predictor.catalogue.rows(ids)]
        return score_R


@dataclass(frozen=True)
class LensKitSplit:
    """A data set's own split, as LensKit takes it."""

    train: LensKitDataset
    """All items, and the rows of training users."""
    queries: list[tuple[RecQuery, ItemList]]
    """Each user with the support rows as history, and the items of the query rows: what a runner runs."""
    truth: ItemListCollection[Any]
    """The query rows with their ratings, which predictions are measured by."""
    liked: ItemListCollection[Any]
    """Those that the user liked, which lists are measured by; a user who liked none has an empty list."""


def split_of(data: Dataset | str | Path, split: Split = "test") -> LensKitSplit:
    """The users of a split of a prepared data set, with the same support and query rows that paml judges by.

    `data` is a data set or its folder. Ids are text, as in the data set.
    """
    data = Dataset.of(data)
    users, items = (frame.collect()[name] for frame, name in ((data.users(), "user"), (data.items(), "item")))
    tasks, target = Tasks.of(data, split), data.schema.target
    least = reaching(target, liked_level(target))
    queries, truth, good = [], [], []
    for number, user in enumerate(users.slice(tasks.first, len(tasks))):
        start, end = tasks.offsets[number : number + 2].tolist()
        middle = start + int(tasks.support[number])
        known, asked = _rows(data, items, start, middle), _rows(data, items, middle, end)
        queries.append((RecQuery(user_id=user, history_items=known), asked))
        truth.append(asked)
        good.append(asked[np.asarray(data.array("target")[middle:end]) >= least])
    keys = [str(query.user_id) for query, _ in queries]
    return LensKitSplit(_training(data, users, items), queries, _by_user(keys, truth), _by_user(keys, good))


def _rows(data: Dataset, items: pl.Series, start: int, end: int) -> ItemList:
    """Some rows of one user."""
    ids = items.gather(data.array("item")[start:end]).to_list()
    return ItemList(item_ids=ids, rating=np.asarray(data.array("target")[start:end], dtype=np.float64))


def _by_user(keys: Sequence[str], lists: Sequence[ItemList]) -> ItemListCollection[Any]:
    return ItemListCollection.from_dict(dict(zip(keys, lists, strict=True)), "user_id")


def _training(data: Dataset, users: pl.Series, items: pl.Series) -> LensKitDataset:
    """The rows of training users; items that none of them has are candidates, too."""
    tasks = Tasks.of(data, "train")
    builder, end = DatasetBuilder(), data.training_rows
    builder.add_entities("item", items.to_list())
    rows = pl.DataFrame(
        {
            "user_id": users.gather(np.repeat(np.arange(len(tasks)), np.diff(tasks.offsets))),
            "item_id": items.gather(data.array("item")[:end]),
            "rating": pl.Series(np.asarray(data.array("target")[:end], dtype=np.float64)),
        }
    )
    builder.add_interactions(
        "rating", rows.to_pandas(), entities=["user", "item"], missing="insert", allow_repeats=False, default=True
    )
    return builder.build()
