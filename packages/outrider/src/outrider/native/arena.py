"""Memory for packed weights, in huge pages where the system grants them.

Every forward pass reads all weights. In pages of 4 KB the processor looks up a page's address for every few cache
lines, and does not read ahead beyond the page's end; in pages of 2 MB reading is up to a quarter faster.
"""

from __future__ import annotations

import contextlib
import mmap
import threading

import numpy as np
from numpy.typing import NDArray

__all__ = ["aligned_memory"]

_ALIGNMENT = 64
_HUGE_PAGE = 2 << 20
_SEGMENT = 32 << 20
"""Bytes requested from the system at a time. Unused pages are never touched, and take no memory."""


class _Arena:
    """Allocates pieces of a segment, then of the next; a segment lives as long as its pieces."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: NDArray[np.uint8] = np.empty(0, np.uint8)

    def take(self, size: int) -> NDArray[np.uint8]:
        rounded = -(-size // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            if rounded > len(self._left):
                self._left = _segment(max(_SEGMENT, rounded))
            piece, self._left = self._left[:size], self._left[rounded:]
        return piece


_arena = _Arena()


def aligned_memory(size: int) -> NDArray[np.uint8]:
    """uint8 [size], aligned to 64 bytes. Raises MemoryError without memory."""
    return _arena.take(size)


def _map(size: int) -> mmap.mmap:
    """Private memory: the system gives no huge pages for shareable memory."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _segment(size: int) -> NDArray[np.uint8]:
    """Zeros from the beginning of a huge page."""
    try:
        memory = _map(size + _HUGE_PAGE)
    except (OSError, ValueError) as error:
        raise MemoryError(f"no memory for {size:,} bytes of weights") from error
    everything = np.frombuffer(memory, np.uint8)
    start = -everything.ctypes.data % _HUGE_PAGE
    return everything[start : start + size]
