"""Files of packed weights in the user's cache: written once for each model, and mapped by every later start.

| 16 bytes: magic | 8: bytes of the header | 8: its checksum | header | zeros | from 2 MB on: panels, as in ``Pieces`` |

The header is a line of JSON and a checksum of 64 bits for each piece. All are compared at every start, at the speed of
reading. So a file that a power cut or a bad disk has damaged is found and made anew, and writing waits for no disk.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.native.pieces import Piece, Pieces, checksum, scratch, share_out
from outrider.utils.system import read_at, write_at
from outrider.utils.user_cache import locked

__all__ = ["SUFFIX", "PackedFile", "read_facts"]

logger = logging.getLogger(__name__)

Bytes = NDArray[np.uint8]
Tell = Callable[[int], None]

SUFFIX = ".panels"
_MAGIC = b"outrider packed\n"
_START = 2 << 20
"""Byte at which panels begin: a huge page's beginning."""
_SPARE = 256 << 20
"""Bytes of the disk that stay free."""
_PREFIX = struct.Struct("<16sQQ")


class Mapped:
    """The panels of a file, which the system may drop and read again, and which processes share."""

    def __init__(self, memory: mmap.mmap, sums: list[int]) -> None:
        self._memory, self._sums = memory, sums
        self.panels: Bytes = np.frombuffer(memory, np.uint8)[_START:]
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)

    def compare(self, place: int, piece: Piece, panels: Bytes | None = None) -> None:
        """Raise ValueError if a piece, or a copy of it, is not what was written."""
        found = self.panels[piece.start : piece.stop] if panels is None else panels
        if checksum(found) != self._sums[place]:
            raise ValueError(f"bytes {piece.start:,} to {piece.stop:,} of its panels have another checksum")

    def copy(self, place: int, piece: Piece, out: Bytes) -> None:
        """Copy a piece and compare the copy; the file's pages no longer count as memory of this process."""
        out[:] = self.panels[piece.start : piece.stop]
        if hasattr(mmap, "MADV_DONTNEED"):
            start = (_START + piece.start) // mmap.PAGESIZE * mmap.PAGESIZE
            self._memory.madvise(mmap.MADV_DONTNEED, start, _START + piece.stop - start)
        self.compare(place, piece, out)


@dataclass(frozen=True)
class PackedFile:
    """A place for the weights of one model in one precision."""

    path: Path
    facts: dict[str, Any]
    """All that the bytes depend on, and the model's name; a file with others is replaced."""

    def open(self, pieces: Pieces) -> Mapped | None:
        """The panels, not yet compared; None if there are none, or damaged ones, of which a line tells."""
        try:
            with self.path.open("rb") as file:
                sums = self._read_header(file.fileno(), pieces)
                return None if sums is None else Mapped(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), sums)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.tell_damage(error)
            return None

    def tell_damage(self, error: Exception) -> None:
        """Write a line on a file that cannot be used."""
        logger.warning("%s is damaged and is made anew: %s", self.path, error)

    def _read_header(self, file: int, pieces: Pieces) -> list[int] | None:
        """The checksums; None for a sound file of other facts. Raises ValueError for a damaged one."""
        facts, sums = _read_header(file)
        if facts != self.facts:
            return None
        size = os.fstat(file).st_size
        if len(sums) != len(pieces.all) or size != _START + pieces.nbytes:
            raise ValueError(f"{size:,} bytes in place of {_START + pieces.nbytes:,}")
        return sums

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lets one process write at a time. Raises ``ConfigError`` or ``CapacityError`` if the place is not usable."""
        with locked(f"packed-{self.path.parent.name}", announce=True):
            yield

    def write(self, pieces: Pieces, tell: Tell) -> None:
        """Pack into a file that appears when it is whole, and remove what earlier files of the model left.

        Raises OSError, for one without room on the disk, and as ``Plan.pack``.
        """
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f".{self.path.name}.tmp"
        for left in folder.glob(".*.tmp"):
            left.unlink()
        for other in folder.glob(f"*{SUFFIX}"):
            if (read_facts(other) or {}).get("files") != self.facts["files"]:
                other.unlink()
        free = shutil.disk_usage(folder).free
        if free < pieces.nbytes + _SPARE:
            raise OSError(f"{free / 1e9:.1f} GB are free")
        try:
            with fresh.open("xb") as file:
                self._fill(file.fileno(), pieces, tell)
            os.replace(fresh, self.path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    def _fill(self, file: int, pieces: Pieces, tell: Tell) -> None:
        memory, sums = scratch(pieces.all), [0] * len(pieces.all)

        def pack(place: int, piece: Piece) -> None:
            panels = memory(piece)
            piece.pack(panels)
            sums[place] = checksum(panels)
            write_at(file, panels.data, _START + piece.start)

        share_out(pieces.all, pack, tell)
        header = json.dumps(self.facts).encode() + b"\n" + struct.pack(f"<{len(sums)}Q", *sums)
        if _PREFIX.size + len(header) > _START:
            raise OSError("too many matrices")
        prefix = _PREFIX.pack(_MAGIC, len(header), checksum(np.frombuffer(header, np.uint8)))
        write_at(file, memoryview(prefix + header), 0)


def read_facts(path: Path) -> dict[str, Any] | None:
    """The facts of a file; None if there are none to read."""
    try:
        with path.open("rb") as file:
            return _read_header(file.fileno())[0]
    except (OSError, ValueError):
        return None


def _read_header(file: int) -> tuple[dict[str, Any], list[int]]:
    """Facts and checksums. Raises ValueError for a damaged header."""
    prefix = read_at(file, _PREFIX.size, 0)
    if len(prefix) < _PREFIX.size or prefix[: len(_MAGIC)] != _MAGIC:
        raise ValueError("its beginning is not that of packed weights")
    _, size, expected = _PREFIX.unpack(prefix)
    header = read_at(file, min(size, _START), _PREFIX.size)
    if not header or len(header) != size or checksum(np.frombuffer(header, np.uint8)) != expected:
        raise ValueError("its header has another checksum")
    line, _, sums = header.partition(b"\n")
    facts = json.loads(line)
    if not isinstance(facts, dict) or len(sums) % 8:
        raise ValueError("its header is that of another version")
    return facts, [number for (number,) in struct.iter_unpack("<Q", sums)]
