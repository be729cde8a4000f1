"""Task batches as tensors, the engine's input. Each distinct item of a batch is looked up once.

For a head over all items (choice), the batch's items are all items or, in training on a large catalogue, those of its
rows and a random sample (candidates.py).

Legend: B users, R rows of a block, N distinct items, I all items.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Dataset
from paml.episodes.candidates import Candidates
from paml.episodes.features import Features, FeatureTable, InputSpec, unknown
from paml.episodes.tasks import Block, Known, TaskBatch
from paml.errors import LeakageError


@dataclass(frozen=True)
class QueryBlock:
    """Rows of B users to predict: which of the batch's items, in which context."""

    index_BR: Tensor
    context: Features | None


@dataclass(frozen=True)
class RowBlock(QueryBlock):
    """Rows of B users with their targets, and a mask that is 0 for padding."""

    y_BR: Tensor
    mask_BR: Tensor


@dataclass(frozen=True)
class Share:
    """The users of a batch that one of several processes takes."""

    part: slice
    counts: bool = True
    """False if these users are another process's, too, and are only here because a batch cannot be empty."""


@dataclass(frozen=True)
class Whole:
    """The batch that a share was taken from: what is random follows from it."""

    share: Share
    support_index: Callable[[], np.ndarray]
    """Its `index_BR` of the support set."""


@dataclass(frozen=True)
class SupportBatch:
    """What is known about B users: enough to adapt to them."""

    users: Features
    items: Features
    item_N: Tensor
    support: RowBlock
    log_chance_N: Tensor | None = field(default=None, kw_only=True)
    """Log chance of each item to be among the batch's, where these are a sample of all items."""
    whole: Whole | None = field(default=None, kw_only=True)
    """If these are a share of a batch's users."""


@dataclass(frozen=True)
class TensorBatch(SupportBatch):
    """B tasks: what is known about each user, and what is to be predicted."""

    user_B: np.ndarray
    query: RowBlock


class Loader:
    """Turns task batches of one data set into tensors on a device, with the fields that a network takes."""

    def __init__(
        self,
        data: Dataset,
        inputs: InputSpec | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        candidates: Candidates | None = None,
    ) -> None:
        """Without `inputs`, all fields of the data set are used; `candidates` choose the items of training batches."""
        self._users, self._items, context = (
            FeatureTable.of(data, side, inputs) for side in ("user", "item", "context")
        )
        self._context = context if context.fields else None
        self._item_count = data.manifest.items
        self._item, self._target = data.array("item"), data.array("target")
        self._device, self._dtype, self._candidates = torch.device(device), dtype, candidates
        self._all: tuple[Features, Tensor] | None = None

    def load(self, batch: TaskBatch, end: int | None = None, share: Share | None = None) -> TensorBatch:
        """Look up everything that the batch's rows and users refer to; only rows before `end` may be read.

        With a `share`, only those users; candidates are still those of the whole batch.
        """
        S, given, whole = batch.support.row_BL.shape[1], batch, None
        if share is not None:
            whole = Whole(share, lambda: self._distinct(given, end)[1][:, :S])
            batch = batch.of(share.part)
        if share is None or self._candidates is None:
            item_N, index_BL, log_chance_N = self._distinct(batch, end)
        else:
            item_N, index_BL, log_chance_N = self._distinct(given, end)
            index_BL = index_BL[share.part]
        block_BL = torch.from_numpy(np.ascontiguousarray(index_BL)).to(self._device)
        if len(item_N) == self._item_count:
            items, item = self.all_items()
        else:
            items, item = self.items(item_N)
        return TensorBatch(
            users=self._users.rows(batch.user_B).to(self._device),
            items=items,
            item_N=item,
            support=self._block(batch.support, block_BL[:, :S]),
            user_B=batch.user_B,
            query=self._block(batch.query, block_BL[:, S:]),
            log_chance_N=None if log_chance_N is None else log_chance_N.to(self._device, self._dtype),
            whole=whole,
        )

    def _distinct(self, batch: TaskBatch, end: int | None) -> tuple[np.ndarray, np.ndarray, Tensor | None]:
        """A batch's distinct items, or candidates; where those of its rows are among them; and their log chances."""
        row_BL = np.concatenate([batch.support.row_BL, batch.query.row_BL], axis=1)
        if end is not None and row_BL.max() >= end:  # not an assertion, which `python -O` would remove
            raise LeakageError("training read a row of another split", remedy="report a bug")
        item_BL = self._item[row_BL]
        if self._candidates is not None:
            item_N, index, log_chance_N = self._candidates.draw(item_BL)
        else:
            item_N, index, log_chance_N = *np.unique(item_BL, return_inverse=True), None
        return item_N, index.reshape(item_BL.shape), log_chance_N

    def all_items(self) -> tuple[Features, Tensor]:
        """The fields of all items, and their rows; looked up once."""
        if self._all is None:
            self._all = self.items(np.arange(self._item_count))
        return self._all

    def items(self, item_N: np.ndarray) -> tuple[Features, Tensor]:
        """The fields of some items, and their rows."""
        return self._items.rows(item_N).to(self._device), torch.from_numpy(item_N.astype(np.int64)).to(self._device)

    def load_known(self, known: Known, items: tuple[Features, Tensor]) -> SupportBatch:
        """What is known about users; support rows refer to `items`, which are all of them."""
        index_BR = torch.from_numpy(self._item[known.support.row_BL].astype(np.int64)).to(self._device)
        users = self._users.rows(known.user_B).to(self._device)
        return SupportBatch(users, *items, self._block(known.support, index_BR))

    def unknown_context(self) -> Features | None:
        """A context of which nothing is known; None for data sets without context."""
        return None if self._context is None else unknown(self._context.fields).to(self._device)

    def load_query(self, batch: TaskBatch) -> RowBlock:
        """The rows to be predicted of a batch whose items are all items."""
        index_BQ = torch.from_numpy(self._item[batch.query.row_BL].astype(np.int64)).to(self._device)
        return self._block(batch.query, index_BQ)

    def _block(self, block: Block, index_BR: Tensor) -> RowBlock:
        context = None if self._context is None else self._context.rows(block.row_BL.ravel()).to(self._device)
        return RowBlock(
            index_BR=index_BR,
            context=context,
            y_BR=torch.from_numpy(self._target[block.row_BL]).to(self._device, self._dtype),
            mask_BR=torch.from_numpy(block.mask_BL).to(self._device, self._dtype),
        )
