"""The panels of a model: mapped from the user's cache, packed into it, or packed into memory."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.errors import CapacityError, ConfigError
from outrider.native.arena import aligned_memory
from outrider.native.identity import PackedPlace, facts_of
from outrider.native.packed_file import Mapped, PackedFile
from outrider.native.pieces import Piece, Pieces, share_out
from outrider.native.plans import Plan
from outrider.utils.memory import available_memory
from outrider.utils.progress import progress_bar

__all__ = ["VARIABLE", "Panels", "pack_all"]

logger = logging.getLogger(__name__)

Bytes = NDArray[np.uint8]

VARIABLE = "OUTRIDER_PACKED"
"""Environment variable: ``off`` keeps no packed weights on the disk; ``map`` and ``copy`` decide how they are read."""
_MODES = ("auto", "map", "copy", "off")
_NOTABLE = 256 << 20
"""Bytes from which packing takes long enough to be shown."""
_SAMPLE = 64 << 20
"""Bytes of a mapping that are read before it is known whether the system maps it in huge pages."""
_HUGE_ENOUGH = 0.4
"""Share of them in huge pages from which a mapping is read as fast as memory (docs/native.md)."""
_ROOM = 1.2
"""Times their size that must be available for weights to be copied."""


@dataclass(frozen=True)
class Panels:
    """The panels of some plans, in order."""

    of: list[Bytes]
    mapped_bytes: int = 0
    """Those of a file, which the system may drop and read again."""


def pack_all(plans: Sequence[Plan], place: PackedPlace | None = None) -> Panels:
    """The panels of all plans; ``place``: where they are kept for later starts, None: nowhere.

    Raises as ``Plan.pack``, and ``ConfigError`` for an unknown value of ``OUTRIDER_PACKED``.
    """
    mode = os.environ.get(VARIABLE) or "auto"
    if mode not in _MODES:
        raise ConfigError(f"{VARIABLE}={mode!r} is unknown: use one of {', '.join(_MODES)}")
    pieces = Pieces(plans)
    file = None
    if place is not None and mode != "off" and pieces.nbytes >= place.least:
        facts = facts_of(plans, place)
        file = None if facts is None else PackedFile(place.path, facts)
    show = place is not None and place.progress and pieces.nbytes >= _NOTABLE
    whole, mapped = (None, False) if file is None else _from_file(file, pieces, mode, show)
    if whole is None:
        whole = memory = aligned_memory(pieces.nbytes)
        with progress_bar("packing weights", pieces.nbytes, show=show) as tell:
            share_out(pieces.all, lambda _, piece: piece.pack(memory[piece.start : piece.stop]), tell)
    ends = (start + plan.nbytes for start, plan in zip(pieces.starts, plans, strict=True))
    of = [whole[start:end] for start, end in zip(pieces.starts, ends, strict=True)]
    return Panels(of, pieces.nbytes if mapped else 0)


def _from_file(file: PackedFile, pieces: Pieces, mode: str, show: bool) -> tuple[Bytes | None, bool]:
    """The panels, and whether they are mapped; they are written first if need be.

    None, after a line with the reason, if they cannot be.
    """
    found = _read(file, pieces, mode, show)
    if found is not None:
        return found
    try:
        with file.writing():
            found = _read(file, pieces, mode, show)  # another process has written them meanwhile
            if found is None:
                with progress_bar("packing weights (once)", pieces.nbytes, show=show) as tell:
                    file.write(pieces, tell)
                found = _read(file, pieces, mode, show)
    except (OSError, ConfigError, CapacityError) as error:
        size, folder = f"{pieces.nbytes / 1e9:.1f} GB", file.path.parent
        logger.warning("%s of packed weights are not kept in %s, and packed at every start: %s", size, folder, error)
    return found or (None, False)


def _read(file: PackedFile, pieces: Pieces, mode: str, show: bool) -> tuple[Bytes, bool] | None:
    """The panels of a file, all compared with their checksums; None without the file, or if it is damaged."""
    opened = file.open(pieces)
    if opened is None:
        return None
    few = sum(piece.stop <= _SAMPLE for piece in pieces.all)
    try:
        with progress_bar("reading weights", pieces.nbytes, show=show) as tell:
            share_out(pieces.all[:few], opened.compare, tell)
            if mode == "map" or (mode == "auto" and not _better_copied(opened.panels, pieces.all[:few])):
                share_out(pieces.all[few:], lambda i, piece: opened.compare(few + i, piece), tell)
                return opened.panels, True
            memory = aligned_memory(pieces.nbytes)
            copied = partial(_copy, opened, memory)
            share_out(pieces.all, copied, tell)
            return memory, False
    except ValueError as error:
        file.tell_damage(error)
        return None


def _copy(opened: Mapped, memory: Bytes, place: int, piece: Piece) -> None:
    opened.copy(place, piece, memory[piece.start : piece.stop])


def _better_copied(mapped: Bytes, read: Sequence[Piece]) -> bool:
    """Whether the system maps a file in small pages, and has the memory for a copy in huge ones.

    ``read``: the pieces that were read.
    """
    size = sum(piece.stop - piece.start for piece in read)
    return _huge_bytes(mapped, size) < _HUGE_ENOUGH * size and available_memory() > _ROOM * mapped.nbytes


def _huge_bytes(mapped: Bytes, otherwise: int, maps: Path = Path("/proc/self/smaps")) -> int:
    """Bytes of a mapping that lie in huge pages; ``otherwise`` where the system does not tell."""
    try:
        lines = maps.read_text(encoding="utf-8").splitlines()
    except OSError:
        return otherwise
    end, ours = f"-{mapped.ctypes.data + mapped.nbytes:x} ", False
    for line in lines:
        head, _, rest = line.partition(":")
        if "-" in head:
            ours = end in line
        elif ours and head == "FilePmdMapped":
            return int(rest.split()[0]) * 1024
    return otherwise
