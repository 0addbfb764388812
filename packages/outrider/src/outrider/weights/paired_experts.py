"""Stacked experts whose gate and up are in one tensor: gpt-oss, in floats or in blocks of MXFP4, and Llama 4.

gate_up_proj         floats [experts, d, 2 * size]               columns: gate 0, up 0, gate 1, up 1, ...
gate_up_proj_blocks  bytes [experts, 2 * size, d / 32, 16]       the same by rows; gate_up_proj_scales without the 16
gate_up_proj_bias    floats [experts, 2 * size]
down_proj            floats [experts, size, d], or blocks and scales; a bias [experts, d]

In Llama 4's floats the columns of gate_up_proj are all of the gate, then all of up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outrider.native.stored import StoredTensor

__all__ = ["ExpertPlace", "Pairing", "codes_among", "cut_expert", "file_shapes", "place_of", "stacked_name"]

Shape = tuple[int, ...]
Pairing = Literal["", "alternate", "halves"]
"""How the rows of gate and up lie in one tensor; empty: they do not."""

_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK = 32


@dataclass(frozen=True)
class ExpertPlace:
    """Where a stacked tensor holds an expert's gate, up or down."""

    expert: int
    experts: int
    part: int  # 0: gate or down, 1: up
    parts: int  # projections in the tensor
    halves: bool = False  # all rows of the gate come first; else they alternate with those of up

    def rows(self, count: int) -> NDArray[np.int64] | None:
        """The expert's own rows of a projection, of which it has ``count``; None: all."""
        if self.parts == 1:
            return None
        if self.halves:
            return np.arange(self.part * count, (self.part + 1) * count, dtype=np.int64)
        return np.arange(self.part, count * self.parts, self.parts, dtype=np.int64)


def stacked_name(canonical: str, found: Collection[str]) -> str | None:
    """The tensor among ``found`` that holds ``model.layers.0.mlp.experts.3.up_proj.weight``; None: no expert's."""
    before, stacked, rest = canonical.partition(".experts.")
    if not stacked:
        return None
    name = f"{before}.experts.{'down' if 'down_proj' in rest else 'gate_up'}_proj"
    if rest.endswith(".bias"):
        return f"{name}_bias"
    return name + _BLOCKS if name + _BLOCKS in found else name


def place_of(canonical: str, experts: int, pairs: Pairing) -> ExpertPlace:
    """The place of ``model.layers.0.mlp.experts.3.up_proj.weight``."""
    number, projection = canonical.partition(".experts.")[2].split(".")[:2]
    parts = 1 if projection == "down_proj" else 2
    return ExpertPlace(int(number), experts, int(projection == "up_proj"), parts, pairs == "halves")


def file_shapes(own: str, shape: Shape, place: ExpertPlace) -> dict[str, Shape]:
    """Shapes of the stacked tensor ``own`` and of its scales; ``shape``: of one expert's gate, up or down."""
    rows = shape[0] * place.parts
    if len(shape) == 1:
        return {own: (place.experts, rows)}
    if not own.endswith(_BLOCKS):
        return {own: (place.experts, shape[1], rows)}
    blocks = (place.experts, rows, -(-shape[1] // _BLOCK))
    return {own: (*blocks, _BLOCK // 2), _scales_of(own): blocks}


def codes_among(names: Collection[str]) -> frozenset[str]:
    """Those of ``names`` that are bytes: blocks and scales."""
    return frozenset(name for name in names if name.endswith((_BLOCKS, _SCALES)))


def cut_expert(own: str, shape: Shape, place: ExpertPlace, files: Mapping[str, StoredTensor]) -> StoredTensor:
    """One expert's gate, up or down of ``shape``: views of the stacked tensor ``own`` and its scales."""
    rows, tensor = shape[0] * place.parts, files[own]
    blocks = own.endswith(_BLOCKS)
    return StoredTensor(
        "MXFP4" if blocks else tensor.type,
        (rows, *shape[1:]),
        _share(tensor, place),
        place.rows(shape[0]),
        scales=_share(files[_scales_of(own)], place) if blocks else None,
        transposed=not blocks and len(shape) == 2,
    )


def _scales_of(blocks: str) -> str:
    return blocks.removesuffix(_BLOCKS) + _SCALES


def _share(tensor: StoredTensor, place: ExpertPlace) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    size = len(tensor.data) // place.experts
    return tensor.data[place.expert * size : (place.expert + 1) * size]
