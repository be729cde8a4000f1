"""Memory that is kept for the next step is given back before memory is measured."""

import sys
from pathlib import Path

import pytest

from paml.training.allocator import keep_freed_memory, return_freed_memory

PIECES, SIZE = 200, 1 << 20


def resident_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1e3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc keeps memory in this way")
def test_freed_memory_is_kept_and_given_back() -> None:
    if not keep_freed_memory():
        pytest.skip("the C library has no mallopt")
    return_freed_memory()
    before = resident_mb()
    pieces = [bytearray(b"x" * SIZE) for _ in range(PIECES)]
    del pieces
    kept = resident_mb()
    return_freed_memory()
    after = resident_mb()
    assert kept - before > 150
    assert after - before < 50
