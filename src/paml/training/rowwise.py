"""Adam for large tables, row by row: a step costs as much as the rows that its batch reads, not as the catalogue.

Dense Adam moves every row in every step, since moments fade only slowly. While a row is not read its gradient is 0, so
what k such steps do to it is known in advance, and is done when the row is read next:

    w  <-  w - m / (sqrt(v) / S + eps / T),    m  <-  b1^k m,    v  <-  b2^k v,
    T  =   sum of  t_s = rate_s b1^(s - l) / (1 - b1^s)  over the steps s after the row's last one, l,
    S  =   sum of  t_s sqrt((1 - b2^s) / b2^(s - l))

S and T are the same for all rows with the same l. This is dense Adam, exact but for rounding where eps can be neglected
and where nothing else counts; in between, for gradients of about eps, it is very near. It needs steps that leave rows
without gradient alone: no weight decay (Adam's L2 decay is a gradient of every row), no moving average, no norm of the
gradient.

Legend: R rows of a table that are read, W its width.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from paml.training.recipe import OuterSettings

MIN_ROWS = 50_000
"""Smaller tables are cheaper to update as a whole: a batch reads about 10,000 rows, and reading rows one by one is
slower than going through a table from its start to its end."""
CHUNK = 1 << 16
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


def goes_by_rows(table: nn.Parameter, settings: OuterSettings) -> bool:
    """Whether a table is updated row by row."""
    moves_all = settings.weight_decay or settings.ema_decay or settings.clip_norm
    return len(table) >= MIN_ROWS and not moves_all


class _Table:
    """A table with its moments; `last_R` is the step until which each row is up to date."""

    def __init__(self, weights: nn.Parameter) -> None:
        self.weights = weights
        self.m, self.v = torch.zeros_like(weights.detach()), torch.zeros_like(weights.detach())
        self.last_R = torch.zeros(len(weights), dtype=torch.int64, device=weights.device)


class RowwiseAdam:
    """Updates tables by the rows that were read; embedders ask it before they read (network/embeddings.py)."""

    def __init__(self, tables: Iterable[nn.Parameter], rate: float) -> None:
        self._tables = {id(table): _Table(table) for table in tables}
        self.rate = rate
        self._step = self._settled = 0
        self._tails = [(0.0, 0.0)]
        """S and T of rows whose last step is `_settled`, `_settled` + 1, ..."""

    @torch.no_grad()
    def before_reading(self, table: nn.Parameter, row_R: Tensor) -> bool:
        """Bring rows up to date; whether the table is one of these, whose gradients are sparse."""
        found = self._tables.get(id(table))
        if found is not None and self._settled < self._step:
            self._catch_up(found, torch.unique(row_R))
        return found is not None

    @torch.no_grad()
    def step(self) -> None:
        """Adam for the rows that have a gradient: those that were read, here or by another rank."""
        gradients = {
            name: one.weights.grad.coalesce() for name, one in self._tables.items() if one.weights.grad is not None
        }
        for name, gradient in gradients.items():
            self._catch_up(self._tables[name], gradient.indices()[0])
        self._step += 1
        correction = math.sqrt(1 - BETA2**self._step)
        rate = self.rate / (1 - BETA1**self._step)
        for name, gradient in gradients.items():
            self._move(self._tables[name], gradient.indices()[0], gradient.values(), rate, correction)
        first = len(self._tails)  # steps that the rows of the first entry have waited
        terms = [(rate * BETA1 ** (first - k), correction * BETA2 ** ((k - first) / 2)) for k in range(first)]
        self._tails = [(S + t * x, T + t) for (S, T), (t, x) in zip(self._tails, terms, strict=True)] + [(0.0, 0.0)]

    def _move(self, table: _Table, row_R: Tensor, gradient_RW: Tensor, rate: float, correction: float) -> None:
        m_RW = table.m[row_R].lerp_(gradient_RW, 1 - BETA1)
        v_RW = table.v[row_R].mul_(BETA2).addcmul_(gradient_RW, gradient_RW, value=1 - BETA2)
        table.m[row_R], table.v[row_R] = m_RW, v_RW
        table.weights[row_R] = table.weights[row_R].addcdiv_(m_RW, v_RW.sqrt_().div_(correction).add_(EPS), value=-rate)
        table.last_R[row_R] = self._step

    @torch.no_grad()
    def settle(self) -> None:
        """Bring all rows of all tables up to date, before weights are validated or stored."""
        for table in self._tables.values() if self._settled < self._step else ():
            for first in range(0, len(table.weights), CHUNK):
                end = min(first + CHUNK, len(table.weights))
                self._catch_up(table, torch.arange(first, end, device=table.last_R.device))
        self._settled, self._tails = self._step, [(0.0, 0.0)]

    def _catch_up(self, table: _Table, row_R: Tensor) -> None:
        row_R = row_R[table.last_R[row_R] < self._step]
        if not len(row_R):
            return
        last_R1 = table.last_R[row_R].unsqueeze(1)
        waited_R1 = (self._step - last_R1).to(table.m.dtype)
        tails_R2 = torch.tensor(self._tails, device=row_R.device)[last_R1.squeeze(1) - self._settled].to(table.m.dtype)
        m_RW, v_RW = table.m[row_R], table.v[row_R]
        table.weights[row_R] -= m_RW / (v_RW.sqrt() / tails_R2[:, :1] + EPS / tails_R2[:, 1:])
        table.m[row_R], table.v[row_R] = m_RW * BETA1**waited_R1, v_RW * BETA2**waited_R1
        table.last_R[row_R] = self._step

    def moments(self, table: nn.Parameter) -> dict[str, Tensor]:
        """m and v of a table, settled; empty for other parameters."""
        self.settle()
        found = self._tables.get(id(table))
        return {} if found is None else {"m": found.m, "v": found.v}

    def state(self) -> dict[str, Tensor]:
        """What is needed to continue, settled; empty without tables."""
        self.settle()
        moments = [
            (f"{k}.{name}", getattr(table, name)) for k, table in enumerate(self._tables.values()) for name in "mv"
        ]
        return {**dict(moments), "step": torch.tensor(self._step)} if moments else {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        for k, table in enumerate(self._tables.values()):
            table.m.copy_(state[f"{k}.m"])
            table.v.copy_(state[f"{k}.v"])
        self._step = self._settled = int(state["step"]) if self._tables else 0
        for table in self._tables.values():
            table.last_R.fill_(self._step)
