"""Products of two matrices, by the fastest library that PyTorch brings for this processor.

PyTorch multiplies single precision by MKL, which on processors that are not Intel's uses vectors of 256 bits where they
have 512. oneDNN, which PyTorch brings for convolutions, uses them: on an EPYC of the fifth generation a product takes
0.45 times as long. It is asked by the operation that torch.compile would put here, for products that are large enough
to pay for what asking costs. It compiles a program for every shape, in a quarter of a millisecond, and keeps a
thousand, so shapes have to come again. PAML_ONEDNN=0 turns it off, PAML_ONEDNN=1 asks it on every processor.

Legend: R rows, D inputs, K outputs.
"""

import os
import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

MIN_MULTIPLICATIONS = 1 << 21
MIN_WIDTH = 16  # narrower products are bound by memory, whoever computes them
BLOCK = 128  # rows


def times(a_RD: Tensor, b_DK: Tensor, add_K: Tensor | None = None) -> Tensor:
    """a b, or a b + add in every row, (R, K); not differentiable."""
    if _is_for_onednn(a_RD, b_DK):
        return _linear(a_RD, b_DK.mT, add_K)
    return a_RD @ b_DK if add_K is None else torch.addmm(add_K, a_RD, b_DK)


def transposed_times(a_RD: Tensor, b_RK: Tensor, to_DK: Tensor | None = None) -> Tensor:
    """a^T b, (D, K), contiguous, or added to a tensor in place; not differentiable.

    oneDNN has the factor that comes first copied: a or, if less has to be copied then, b and the product.
    """
    if not (_is_for_onednn(a_RD.mT, b_RK) and _lies_in_lines(a_RD)):
        return a_RD.mT @ b_RK if to_DK is None else to_DK.addmm_(a_RD.mT, b_RK)
    (R, D), K = a_RD.shape, b_RK.shape[1]
    copies_a = R * D <= R * K + D * K
    product_DK = _linear(a_RD.mT, b_RK.mT, None) if copies_a else _linear(b_RK.mT, a_RD.mT, None).mT
    return product_DK.contiguous() if to_DK is None else to_DK.add_(product_DK)


def in_blocks(rows: int) -> int:
    """A number of rows that comes again: where oneDNN is asked, whole blocks."""
    return -(-rows // BLOCK) * BLOCK if onednn_is_faster() else rows


def _linear(x_RD: Tensor, weight_KD: Tensor, bias_K: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x_RD, weight_KD, bias_K, "none", [], "")
    return product


def _is_for_onednn(a_RD: Tensor, b_DK: Tensor) -> bool:
    """Whether oneDNN takes these factors, and less time than MKL."""
    (R, D), K = a_RD.shape, b_DK.shape[1]
    return (
        R * D * K >= MIN_MULTIPLICATIONS
        and min(R, D, K) >= MIN_WIDTH
        and a_RD.dtype == torch.float32
        and a_RD.device.type == "cpu"
        and _lies_in_lines(b_DK)
        and onednn_is_faster()
    )


def _lies_in_lines(b_DK: Tensor) -> bool:
    """Whether rows or columns lie one after the other, none over another."""
    (D, K), (down, right) = b_DK.shape, b_DK.stride()
    return (right == 1 and down >= K) or (down == 1 and right >= D)


@cache
def onednn_is_faster() -> bool:
    """Whether this is a processor with vectors of 512 bits that MKL does not use."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    asked = os.environ.get("PAML_ONEDNN")
    if asked is not None:
        return asked != "0"
    return (
        torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and "GenuineIntel" not in _vendor()
    )


def _vendor() -> str:
    """Who made the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line for line in lines if line.startswith("vendor_id")), "")
