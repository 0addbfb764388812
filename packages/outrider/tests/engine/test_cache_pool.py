"""The memory behind a key-value cache."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from outrider.cache.pool import Pool, RowShape

LAYERS, ROWS = 8, 1 << 16


def make(rows: int = ROWS) -> Pool:
    shape = RowShape(layers=LAYERS, kv_heads=3, head_dim=64, dtype="float32")
    return Pool.make(rows, shape, block=1, filler=0, spare=0)


def resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells what is resident")
def test_the_first_row_of_a_sequence_takes_no_huge_pages() -> None:
    """16 sequences: 256 rows of 768 bytes, each in a page of its own; in huge pages 512 MB."""
    pool = make()
    before = resident()
    for layer in range(LAYERS):
        for row in range(0, ROWS, ROWS // 16):
            pool.write(layer, slice(row, row + 1), np.ones((1, 3, 64)), np.ones((1, 3, 64)))
    assert resident() - before < 16 << 20
    assert all(float(tensor.sum()) == 16 * 192 for tensor in pool.arrays[:1])


def test_rows_are_zeros_of_the_right_shape() -> None:
    pool = make(5)
    assert {(*tensor.shape,) for tensor in pool.arrays} == {(5, 3, 64)}
    assert not any(bool(tensor.any()) for tensor in pool.arrays)
    assert make(0).k[0].shape == (0, 3, 64)


def test_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(MemoryError, match="bytes of cache"):
        make(1 << 48)
