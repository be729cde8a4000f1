"""A table of items: equal rows are multiplied once, and a part of a table after the other; nobody sees a difference."""

import numpy as np
import pytest
import torch

from paml.engine import joint, products
from paml.engine.joint import JointTable, Repeats

ITEMS, MEMBERS, WIDTH, USERS = 40, 2, 5, 3


def rows_of(distinct: int, seed: int = 0) -> torch.Tensor:
    """Rows of all items, of which so many are distinct, (I, M, E); the first entry is 1."""
    rng = torch.Generator().manual_seed(seed)
    rows_IME = torch.randn(distinct, MEMBERS, WIDTH, generator=rng)[torch.arange(ITEMS) * distinct // ITEMS]
    rows_IME[..., 0] = 1.0
    return rows_IME[torch.randperm(ITEMS, generator=rng)]


def answers(table: JointTable, size: float = 1.0) -> dict[str, torch.Tensor]:
    """All that a table computes."""
    rng = torch.Generator().manual_seed(1)
    weights_MBE = size * torch.randn(MEMBERS, USERS, WIDTH, generator=rng)
    weights_NE1 = weights_MBE.flatten(0, 1).unsqueeze(-1)
    alone_ME, index_R = weights_MBE[:, 0].numpy(), torch.tensor([3, 0, 3, 17])
    chance_I = np.linspace(0, 1, ITEMS, dtype=np.float32)
    found = {
        "rows": table.rows(index_R),
        "times": table.times(weights_NE1),
        "a chunk": table.times(weights_NE1, slice(7, 30)),
        "expected": table.expected(weights_NE1),
        "by_member": np.stack([*table.by_member(weights_MBE.numpy())]),
        "solo_rows": table.solo_rows(index_R.numpy()),
        "solo_times": table.solo_times(alone_ME),
        "solo_mean": table.solo_mean(alone_ME),
        "solo_mean_row": table.solo_mean_row(chance_I),
        "solo_expected": table.solo_expected(alone_ME),
    }
    return {name: torch.as_tensor(value) for name, value in found.items()}


@pytest.mark.parametrize("distinct", [1, 9, 29])
def test_equal_rows_are_multiplied_once(distinct: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_IME = rows_of(distinct)
    repeats = Repeats.of(rows_IME)
    assert repeats is not None
    assert len(repeats.item_U) == distinct
    assert torch.equal(rows_IME[repeats.item_U][repeats.place_I], rows_IME)
    found = answers(JointTable(rows_IME))
    monkeypatch.setattr(joint, "MAX_DISTINCT", 0.0)
    torch.testing.assert_close(found, answers(JointTable(rows_IME)), atol=1e-5, rtol=1e-5)


def test_a_table_with_few_equal_rows_stays_as_it_is() -> None:
    assert Repeats.of(rows_of(31)) is None
    assert Repeats.of(rows_of(40)) is None


def test_rows_whose_sums_are_equal_by_chance_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros:
        @staticmethod
        def standard_normal(size: int) -> np.ndarray:
            return np.zeros(size)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: Zeros())
    assert Repeats.of(rows_of(9)) is None
    assert Repeats.of(rows_of(1)) is not None


@pytest.mark.parametrize("at_once", [1, 7, ITEMS])
@pytest.mark.parametrize("distinct", [9, 40])
def test_part_of_a_table_after_the_other(at_once: int, distinct: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "ITEMS_IN_CACHE", at_once)
    monkeypatch.setattr(joint, "ITEMS_AT_ONCE", at_once)
    table = JointTable(rows_of(distinct))
    for size in (1.0, 100.0):  # whose exponentials no number can hold
        found = answers(table, size)
        torch.testing.assert_close(found["solo_expected"], found["expected"].view(MEMBERS, USERS, WIDTH)[:, 0])


@pytest.mark.skipif(not products.has_onednn(), reason="this PyTorch was built without oneDNN")
@pytest.mark.parametrize("distinct", [9, 40])
def test_either_library_gives_the_same(distinct: int, monkeypatch: pytest.MonkeyPatch) -> None:
    table = JointTable(rows_of(distinct))
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    plain = answers(table)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 1)
    monkeypatch.setattr(products, "MIN_WIDTH", 1)
    torch.testing.assert_close(answers(table), plain, atol=1e-5, rtol=1e-5)
