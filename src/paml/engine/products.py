"""Products of matrices in the form, and by the library, that take the least time on this processor.

Of two matrices: PyTorch multiplies single precision by MKL, which on processors that are not Intel's uses vectors of
256 bits where they have 512. oneDNN, which PyTorch brings for convolutions, uses them: on an EPYC of the fifth
generation a product takes 0.45 times as long. It is asked by the operation that torch.compile would put here, for
products that are large enough to pay for what asking costs. It compiles a program for every shape, in a quarter of a
millisecond, and keeps a thousand, so shapes have to come again. PAML_ONEDNN=0 turns it off, PAML_ONEDNN=1 asks it on
every processor.

Of two matrices per user: MKL takes up to nine times as long for a batch of products with few columns as for the same
products transposed, and four times as long for a column times a row as for their numbers one by one.

Legend: B users, R rows, D inputs, K outputs.
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
FEW_COLUMNS = 8


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


def times_own(x_BRD: Tensor, own_BDK: Tensor, add_B1K: Tensor | None = None) -> Tensor:
    """Each user's rows times their own matrix, x W_i, or plus what is added to all rows, (B, R, K); no view."""
    K = own_BDK.shape[2]
    if K > FEW_COLUMNS:
        return torch.bmm(x_BRD, own_BDK) if add_B1K is None else torch.baddbmm(add_B1K, x_BRD, own_BDK)
    left_BKD, right_BDR = own_BDK.mT, x_BRD.mT
    product_BKR = torch.bmm(left_BKD, right_BDR) if add_B1K is None else torch.baddbmm(add_B1K.mT, left_BKD, right_BDR)
    product_BRK = product_BKR.mT.contiguous()
    not_a_view: Tensor = torch.ops.aten._unsafe_view(product_BRK, product_BRK.shape)
    return not_a_view


def transposed_times_own(a_BRD: Tensor, b_BRK: Tensor) -> Tensor:
    """a^T b per user, (B, D, K)."""
    if b_BRK.shape[2] > FEW_COLUMNS:
        return torch.bmm(a_BRD.mT, b_BRK)
    return torch.bmm(b_BRK.mT, a_BRD).mT.contiguous()


def times_transposed_own(a_BRK: Tensor, b_BDK: Tensor) -> Tensor:
    """a b^T per user, (B, R, D)."""
    return torch.bmm(a_BRK, b_BDK.mT) if a_BRK.shape[2] != 1 else a_BRK * b_BDK.mT


def in_blocks(rows: int, like: Tensor) -> int:
    """A number of rows that comes again: where oneDNN is asked, whole blocks."""
    return -(-rows // BLOCK) * BLOCK if suits_onednn(like) else rows


def suits_onednn(x: Tensor) -> bool:
    """Whether oneDNN takes such numbers, and less time than MKL."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and onednn_is_faster()


def _linear(x_RD: Tensor, weight_KD: Tensor, bias_K: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x_RD, weight_KD, bias_K, "none", [], "")
    return product


def _is_for_onednn(a_RD: Tensor, b_DK: Tensor) -> bool:
    """Whether oneDNN takes these factors, and less time than MKL."""
    (R, D), K = a_RD.shape, b_DK.shape[1]
    return (
        R * D * K >= MIN_MULTIPLICATIONS and min(R, D, K) >= MIN_WIDTH and suits_onednn(a_RD) and _lies_in_lines(b_DK)
    )


def _lies_in_lines(b_DK: Tensor) -> bool:
    """Whether rows or columns lie one after the other, none over another."""
    (D, K), (down, right) = b_DK.shape, b_DK.stride()
    return (right == 1 and down >= K) or (down == 1 and right >= D)


def has_onednn() -> bool:
    """Whether this PyTorch brings it."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def onednn_is_faster() -> bool:
    """Whether this is a processor with vectors of 512 bits that MKL does not use."""
    if not has_onednn():
        return False
    asked = os.environ.get("PAML_ONEDNN")
    if asked in ("0", "1"):
        return asked == "1"
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
