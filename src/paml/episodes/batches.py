"""Task batches as tensors: what the engine takes. Distinct items of a batch are looked up once.

Legend: B users, R rows of a block, N distinct items.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from paml.data.dataset import Dataset
from paml.data.schema import Schema
from paml.episodes.features import Features, FeatureTable
from paml.episodes.tasks import Block, TaskBatch


@dataclass(frozen=True)
class RowBlock:
    """Support or query rows of B users: which of the batch's items, the targets, and which places are rows."""

    index_BR: Tensor
    y_BR: Tensor
    mask_BR: Tensor
    context: Features | None


@dataclass(frozen=True)
class TensorBatch:
    """B tasks, ready for the engine."""

    user_B: np.ndarray
    users: Features
    items: Features
    item_N: Tensor
    support: RowBlock
    query: RowBlock


class Loader:
    """Turns task batches of one data set into tensors on a device.

    `schema` says which fields are wanted, `end` which rows may be read at all: those before it, and `keys` are those of
    the items (keys.py), where they are tied.
    """

    def __init__(
        self,
        data: Dataset,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        schema: Schema | None = None,
        end: int | None = None,
        keys: FeatureTable | None = None,
    ) -> None:
        self._users, self._items, context = (
            FeatureTable.of(data, side, schema) for side in ("user", "item", "context")
        )
        self._keys = keys
        self._context = context if context.fields else None
        self._item, self._target = data.array("item"), data.array("target")
        self._device, self._dtype, self._end = torch.device(device), dtype, end

    def load(self, batch: TaskBatch) -> TensorBatch:
        """Look up everything that the batch's rows and users point at."""
        S = batch.support.row_BL.shape[1]
        row_BL = np.concatenate([batch.support.row_BL, batch.query.row_BL], axis=1)
        assert self._end is None or row_BL.max() < self._end, "training read a row of another split"
        item_N, index = np.unique(self._item[row_BL], return_inverse=True)
        items = self._items.rows(item_N)
        if self._keys is not None:
            items = replace(items, keys=self._keys.rows(item_N))
        index_BL = torch.from_numpy(index.reshape(row_BL.shape)).to(self._device)
        return TensorBatch(
            user_B=batch.user_B,
            users=self._users.rows(batch.user_B).to(self._device),
            items=items.to(self._device),
            item_N=torch.from_numpy(item_N.astype(np.int64)).to(self._device),
            support=self._block(batch.support, index_BL[:, :S]),
            query=self._block(batch.query, index_BL[:, S:]),
        )

    def _block(self, block: Block, index_BR: Tensor) -> RowBlock:
        context = None if self._context is None else self._context.rows(block.row_BL.ravel()).to(self._device)
        return RowBlock(
            index_BR=index_BR,
            y_BR=torch.from_numpy(self._target[block.row_BL]).to(self._device, self._dtype),
            mask_BR=torch.from_numpy(block.mask_BL).to(self._device, self._dtype),
            context=context,
        )
