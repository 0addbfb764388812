"""The panels of many matrices in one block of memory or of a file, packed and checked in pieces by all threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.native.library import native_library
from outrider.native.plans import Plan
from outrider.native.processor import num_threads

__all__ = ["Piece", "Pieces", "checksum", "scratch", "share_out"]

Bytes = NDArray[np.uint8]

_PIECE = 8 << 20
"""Bytes of a piece at most, unless a panel is larger: small for caches, large for files whose pages are to be huge."""
_PAGE = 4096
"""Matrices begin at multiples of it."""
_LINE = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive panels of a matrix, and where they lie; the last of a matrix reaches to the next page."""

    plan: Plan
    first: int
    last: int
    start: int
    stop: int

    def pack(self, out: Bytes) -> None:
        """Write the panels to ``out``, uint8 [stop - start], and zeros behind them."""
        size = (self.last - self.first) * self.plan.panel_bytes
        self.plan.pack(self.first, self.last, out[:size])
        self.plan.release(self.first, self.last)
        out[size:] = 0


class Pieces:
    """All matrices of a model, one after the other."""

    def __init__(self, plans: Iterable[Plan]) -> None:
        self.all: list[Piece] = []
        self.starts: list[int] = []
        """Byte at which each plan's panels begin."""
        at = 0
        for plan in plans:
            self.starts.append(at)
            step = max(1, _PIECE // plan.panel_bytes)
            for first in range(0, plan.panels, step):
                last = min(first + step, plan.panels)
                start, at = at, at + (last - first) * plan.panel_bytes
                if last == plan.panels:
                    at = -(-at // _PAGE) * _PAGE
                self.all.append(Piece(plan, first, last, start, at))
        self.nbytes = at
        """Bytes of the whole block."""


def scratch(pieces: Sequence[Piece]) -> Callable[[Piece], Bytes]:
    """Gives memory on cache lines for any of ``pieces``; a thread that asks again gets the same."""
    largest, local = max(piece.stop - piece.start for piece in pieces), threading.local()

    def memory(piece: Piece) -> Bytes:
        if not hasattr(local, "memory"):
            whole = np.empty(largest + _LINE, np.uint8)
            local.memory = whole[-whole.ctypes.data % _LINE :]
        found: Bytes = local.memory[: piece.stop - piece.start]
        return found

    return memory


def share_out(pieces: Sequence[Piece], work: Callable[[int, Piece], None], tell: Callable[[int], None]) -> None:
    """Call ``work(place, piece)`` for all pieces, on all threads; ``tell`` the bytes of each that is done.

    Raises the first error, after the calls in progress.
    """
    threads = min(num_threads(), len(pieces))
    if threads < 2:
        for place, piece in enumerate(pieces):
            work(place, piece)
            tell(piece.stop - piece.start)
        return
    with ThreadPoolExecutor(threads, "outrider-pack") as pool:
        sizes = {pool.submit(work, place, piece): piece.stop - piece.start for place, piece in enumerate(pieces)}
        try:
            for done in as_completed(sizes):
                done.result()
                tell(sizes[done])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def checksum(data: Bytes) -> int:
    """64 bits that tell damaged bytes, at the speed of reading them."""
    found = ctypes.c_uint64()
    if native_library().outrider_checksum(data.ctypes.data, data.nbytes, ctypes.byref(found)):
        raise ValueError("the native library was given no bytes")
    return found.value
