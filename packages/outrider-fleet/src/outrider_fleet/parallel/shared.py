"""Gathers through memory that the processes of one machine share."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile

from outrider.native.library import native_library
from outrider.native.model_structs import SharedStruct

_SLOT = 1 << 20  # bytes of one process's part of a gather; longer ones go in pieces
_LINE = 64


def shared_file(size: int) -> int:
    """An unnamed file for ``size`` processes; children inherit it."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("outrider-gather", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as held:
            file = os.dup(held.fileno())
    os.ftruncate(file, _bytes(size))
    return file


def _bytes(size: int) -> int:
    return _LINE + size * _LINE + 2 * size * _SLOT


class SharedExchange:
    """A process's view of the shared memory. ``function`` and ``context``: see ``models.shard.Exchange``."""

    def __init__(self, file: int, rank: int, size: int) -> None:
        self._memory = mmap.mmap(file, _bytes(size))
        self._view = (ctypes.c_uint8 * _bytes(size)).from_buffer(self._memory)
        memory = ctypes.addressof(self._view)
        self._struct = SharedStruct(rank=rank, size=size, slot_bytes=_SLOT, memory=memory)
        self.context = ctypes.addressof(self._struct)
        gather = native_library().outrider_shared_gather
        self.function = ctypes.cast(gather, ctypes.c_void_p).value or 0

    def give_up(self) -> None:
        """A process is gone: processes that wait for it stop waiting."""
        self._view[0] = 1
