"""Products of two matrices by oneDNN: the same as by MKL, and of training steps, too."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import paml
from paml.engine import ops, products
from paml.episodes import candidates
from paml.episodes.batches import TensorBatch
from paml.methods.objectives import ObjectiveSettings
from paml.methods.registry import METHODS, find_method
from paml.testing.learners import CHOICE, FACTORS, deviation, gradients, make

RNG = torch.Generator().manual_seed(0)
AS_THEY_LIE: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.T.contiguous().T,
    "part of rows": lambda x: torch.cat([x, x], dim=1)[:, : x.shape[1]],
    "part of columns": lambda x: torch.cat([x, x]).T.contiguous().T[: len(x)],
    "one row for all": lambda x: x[:1].expand(len(x), -1),
    "every other": lambda x: torch.stack([x, x], dim=2)[..., 0],
}


NETWORKS: dict[str, dict[str, object]] = {
    "layers": {"hidden": (5, 4, 3), "inner_steps": 2},
    "factors": FACTORS,
    "choice": CHOICE,
    "choice of a sample": {**CHOICE, "sampled_items": 20},
}


def in_single_precision(batch: TensorBatch) -> TensorBatch:
    support, query = (
        replace(block, y_BR=block.y_BR.float(), mask_BR=block.mask_BR.float()) for block in (batch.support, batch.query)
    )
    chance_N = batch.log_chance_N
    return replace(batch, support=support, query=query, log_chance_N=None if chance_N is None else chance_N.float())


@pytest.fixture
def _always_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask oneDNN for every product in single precision, however small."""
    if not products.has_onednn():
        pytest.skip("this PyTorch was built without oneDNN")
    monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 1)
    monkeypatch.setattr(products, "MIN_WIDTH", 1)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)


@pytest.mark.usefixtures("_always_onednn")
@pytest.mark.parametrize("first", AS_THEY_LIE)
@pytest.mark.parametrize("second", AS_THEY_LIE)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(5, 3, 4), (2, 40, 3), (33, 17, 1), (0, 3, 2)])
def test_products_are_those_of_torch(first: str, second: str, rows: int, inputs: int, outputs: int) -> None:
    a_RD = AS_THEY_LIE[first](torch.randn(rows, inputs, generator=RNG))
    b_DK = AS_THEY_LIE[second](torch.randn(inputs, outputs, generator=RNG))
    y_RK = AS_THEY_LIE[second](torch.randn(rows, outputs, generator=RNG))
    add_K, to_DK = torch.randn(outputs, generator=RNG), torch.randn(inputs, outputs, generator=RNG)
    torch.testing.assert_close(products.times(a_RD, b_DK), a_RD @ b_DK)
    torch.testing.assert_close(products.times(a_RD, b_DK, add_K), a_RD @ b_DK + add_K)
    product_DK = products.transposed_times(a_RD, y_RK)
    torch.testing.assert_close(product_DK, a_RD.T @ y_RK)
    assert product_DK.is_contiguous()
    torch.testing.assert_close(products.transposed_times(a_RD, y_RK, to_DK.clone()), a_RD.T @ y_RK + to_DK)


@pytest.mark.usefixtures("_always_onednn")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_linear_layer_is_differentiated_exactly(dtype: torch.dtype) -> None:
    x_RD, weights_DK, bias_K = (
        torch.randn(*shape, generator=RNG, dtype=dtype, requires_grad=True) for shape in ((6, 3), (3, 4), (4,))
    )
    if dtype == torch.float64:
        assert gradcheck(ops.linear, (x_RD, weights_DK, bias_K))
        assert gradcheck(ops.linear, (x_RD, weights_DK))
        return
    given = (x_RD, weights_DK, bias_K)
    found = torch.autograd.grad(ops.linear(*given).square().sum(), given)
    torch.testing.assert_close(found, torch.autograd.grad((x_RD @ weights_DK + bias_K).square().sum(), given))


@pytest.mark.parametrize("method", [name for name in METHODS if name != "at_paml"])  # its memory stays as it was stored
@pytest.mark.parametrize("network", NETWORKS)
def test_training_steps_agree(
    method: str, network: str, world: paml.Dataset, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and gradients of every method in single precision, by oneDNN, and in double, by plain products."""
    monkeypatch.setattr(candidates, "MAX_EXACT", 10)
    learner, batch, recipe = make(world, method, **NETWORKS[network])
    objective = find_method(method).objective(recipe.part(ObjectiveSettings))
    exact = objective(learner, batch).value
    expected = [exact.detach(), *gradients(exact, learner)]
    request.getfixturevalue("_always_onednn")
    single = in_single_precision(batch)
    if network == "choice of a sample":
        rows_NE = learner.float().embed_items(single)[0].rows_NE
        assert len(single.item_N) < len(rows_NE) == products.BLOCK
    loss = objective(learner.float(), single).value
    assert loss.dtype == torch.float32
    assert deviation([loss.double(), *(one.double() for one in gradients(loss, learner))], expected) < 1e-4


@pytest.mark.skipif(not products.has_onednn(), reason="this PyTorch was built without oneDNN")
def test_onednn_is_asked_on_processors_whose_vectors_mkl_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = products.onednn_is_faster.__wrapped__
    monkeypatch.delenv("PAML_ONEDNN", raising=False)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(products, "_vendor", lambda: "vendor_id : AuthenticAMD")
    assert decide()
    monkeypatch.setattr(products, "_vendor", lambda: "vendor_id : GenuineIntel")
    assert not decide()
    for asked, answer in {"1": True, "0": False, "": False, "no": False}.items():
        monkeypatch.setenv("PAML_ONEDNN", asked)
        assert decide() == answer
    monkeypatch.delenv("PAML_ONEDNN")
    monkeypatch.setattr(products, "_vendor", lambda: "")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not decide()


def test_numbers_of_rows_come_again_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    single, double = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    assert [products.in_blocks(rows, single) for rows in (0, 1, 128, 129)] == [0, 128, 128, 256]
    assert products.in_blocks(129, double) == products.in_blocks(129, single.to("meta")) == 129
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    assert products.in_blocks(129, single) == 129


@pytest.mark.parametrize("columns", [1, 2, 8, 9])
@pytest.mark.parametrize("with_sum", [True, False])
def test_products_of_each_users_own_matrices(columns: int, *, with_sum: bool) -> None:
    x_BRD, own_BDK, y_BRK, add_B1K = (
        torch.randn(*shape, generator=RNG, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 5, 3), (2, 3, columns), (2, 5, columns), (2, 1, columns))
    )
    given = (x_BRD, own_BDK, add_B1K) if with_sum else (x_BRD, own_BDK)
    expected = x_BRD @ own_BDK + (add_B1K if with_sum else 0.0)
    found = ops.times_own(*given)
    torch.testing.assert_close(found, expected)
    assert found.is_contiguous()
    assert ops.times_own(*given).relu_().min() == 0  # not a view: it may be changed in place
    torch.testing.assert_close(ops.transposed_times(x_BRD, y_BRK), x_BRD.mT @ y_BRK)
    torch.testing.assert_close(ops.times_transposed(y_BRK, own_BDK), y_BRK @ own_BDK.mT)
    with torch.no_grad():
        torch.testing.assert_close(ops.times_own(*given), expected)
        torch.testing.assert_close(ops.transposed_times(x_BRD, y_BRK), x_BRD.mT @ y_BRK)
        torch.testing.assert_close(ops.times_transposed(y_BRK, own_BDK), y_BRK @ own_BDK.mT)
    assert gradcheck(ops.times_own, given)
    assert gradcheck(ops.transposed_times, (x_BRD, y_BRK))
    assert gradcheck(ops.times_transposed, (y_BRK, own_BDK))
