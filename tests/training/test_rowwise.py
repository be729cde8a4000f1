"""Large tables row by row: the same as dense Adam, whatever is read when, resumable, and only where it is exact."""

from pathlib import Path

import pytest
import torch
from torch.nn.functional import embedding

import paml
from paml.training import checkpoint, rowwise
from paml.training.recipe import OuterSettings
from paml.training.rowwise import RowwiseAdam, goes_by_rows

CHOICE = {"head": "choice", "epochs": 2, "ensemble_size": 1, "item_embedding": 8}


class _InterruptedError(Exception):
    """The training was interrupted."""


def _weights(run: paml.Run) -> dict[str, torch.Tensor]:
    return checkpoint.load(run.path / "weights.safetensors").tensors


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_rows_that_are_read_are_those_of_dense_adam(scale: float) -> None:
    """Gradients of 1e-6 are where eps begins to count."""
    rng = torch.Generator().manual_seed(0)
    initial = torch.randn(200, 3, generator=rng)
    whole, by_row = torch.nn.Parameter(initial.clone()), torch.nn.Parameter(initial.clone())
    dense, lazy = torch.optim.Adam([whole], lr=0.01), RowwiseAdam([by_row], 0.01)
    for step in range(120):
        dense.param_groups[0]["lr"] = lazy.rate = 0.01 if step < 60 else 0.004
        row_R = torch.randint(0, 200 if step % 3 else 10, (8,), generator=rng)
        slope_RW = torch.randn(8, 3, generator=rng) * scale
        assert lazy.before_reading(by_row, row_R)
        torch.testing.assert_close(by_row[row_R], whole[row_R], rtol=0, atol=1e-5 if scale == 1 else 2e-3)
        whole.grad = by_row.grad = None
        (embedding(row_R, whole) * slope_RW).sum().backward()  # type: ignore[no-untyped-call]
        (embedding(row_R, by_row, sparse=True) * slope_RW).sum().backward()  # type: ignore[no-untyped-call]
        dense.step()
        lazy.step()
    untouched = torch.nn.Parameter(torch.zeros(1))
    assert not lazy.before_reading(untouched, torch.zeros(1, dtype=torch.int64))
    lazy.settle()
    torch.testing.assert_close(by_row, whole, rtol=0, atol=1e-5 if scale == 1 else 2e-3)
    assert (whole - initial).abs().max() > 0.05


def test_only_what_leaves_unread_rows_alone_goes_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowwise, "MIN_ROWS", 10)
    large, small = (torch.nn.Parameter(torch.zeros(rows, 2)) for rows in (10, 9))
    assert goes_by_rows(large, OuterSettings())
    assert not goes_by_rows(small, OuterSettings())
    for setting in ("weight_decay", "ema_decay", "clip_norm"):
        assert not goes_by_rows(large, OuterSettings(**{setting: 0.1}))


@pytest.mark.parametrize("method", ["melu", "ridge"])
def test_training_by_rows_is_training(
    method: str, world: paml.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Near dense training, and bit-identical when it is interrupted and resumed."""
    dense = paml.train(world, method, out=tmp_path / "dense", settings=CHOICE)
    monkeypatch.setattr(rowwise, "MIN_ROWS", 20)
    by_row = paml.train(world, method, out=tmp_path / "rows", settings=CHOICE)
    left, right = _weights(dense), _weights(by_row)
    assert any(not torch.equal(left[name], right[name]) for name in left)  # it is another path
    # what is added to all items alike changes no choice: its gradient is rounding, which Adam enlarges
    tables = [name for name in left if ".items.own" in name or ".items.fields.tables" in name]
    assert tables
    for name in tables:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=1e-4, msg=name)
    ended = [run.settings.summary["best_validation"] for run in (dense, by_row)]
    assert ended[1] == pytest.approx(ended[0], rel=1e-5)

    def interrupt(epoch: int, value: float | None) -> None:
        raise _InterruptedError

    with pytest.raises(_InterruptedError):
        paml.train(world, method, out=tmp_path / "resumed", on_epoch=interrupt, settings=CHOICE)
    again = _weights(paml.train(world, method, out=tmp_path / "resumed", reuse=True, settings=CHOICE))
    assert all(torch.equal(right[name], again[name]) for name in right)
