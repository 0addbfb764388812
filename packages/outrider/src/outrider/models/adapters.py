"""A low-rank adapter (LoRA, Hu et al. 2021): the sum it adds to linear layers, for rows of its requests."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.models.inputs import InputSource
from outrider.native.model_structs import ADAPTED, LowRankStruct
from outrider.verify.arrays import Floats, host

__all__ = ["Adapter", "adapted_shapes"]

LowRank = tuple[Floats, Floats]
"""float32 [inputs, rank] and [rank, outputs], the second one scaled: ``y += x @ down @ up``."""


class Adapter(InputSource):
    """Low-rank matrices for linear layers of a model, in the native library's form."""

    def __init__(self, name: str, config: ModelConfig, matrices: Mapping[tuple[int, str], LowRank]) -> None:
        """``matrices``: by the layer's index and the linear layer's name, one of ``ADAPTED``.

        Raises:
            ModelFormatError: a matrix is of another shape than the model's.
        """
        self.name = name
        shapes = adapted_shapes(config)
        digest = hashlib.blake2b(digest_size=16)
        self._held: list[Floats] = []
        self._structs = (LowRankStruct * (config.num_layers * len(ADAPTED)))()
        for (layer, part), (down, up) in sorted(matrices.items()):
            inputs, outputs = shapes[part]
            rank = down.shape[-1]
            if down.shape != (inputs, rank) or up.shape != (rank, outputs):
                raise ModelFormatError(
                    f"the adapter {name!r} has matrices of {list(down.shape)} and {list(up.shape)} for {part} of "
                    f"layer {layer}, where the model has {inputs} inputs and {outputs} outputs: it is for another model"
                )
            own = [np.ascontiguousarray(host(down)), np.ascontiguousarray(host(up))]
            if not all(bool(np.isfinite(matrix).all()) for matrix in own):
                raise ModelFormatError(f"the adapter {name!r} holds numbers that are not finite: it is damaged")
            digest.update(f"{layer} {part} {rank}".encode())
            for matrix in own:
                digest.update(matrix.tobytes())
            self._held += own
            self._structs[layer * len(ADAPTED) + ADAPTED.index(part)] = LowRankStruct(
                rank=rank, inputs=inputs, outputs=outputs, down=own[0].ctypes.data, up=own[1].ctypes.data
            )
        self.key = digest.hexdigest()
        """Digest of the matrices: caches keep the rows of different adapters apart by it."""
        self.address: int = ctypes.addressof(self._structs)

    @property
    def digest(self) -> str:
        return self.key

    @property
    def adapter(self) -> int:
        return self.address

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the matrices take."""
        return sum(matrix.nbytes for matrix in self._held)


def adapted_shapes(c: ModelConfig) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each linear layer that an adapter can change, by name."""
    d, wide, own, inner = c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.intermediate_size
    sizes = ((d, wide), (d, own), (d, own), (wide, d), (d, inner), (d, inner), (inner, d))
    return dict(zip(ADAPTED, sizes, strict=True))


def row_adapters(spans: Any, rows: int) -> Any:
    """For each of ``rows`` rows, the address of its adapter's matrices or null; None if no row has an adapter."""
    if all(span.adapter is None for span in spans):
        return None
    pointers = (ctypes.c_void_p * rows)()
    row = 0
    for span in spans:
        if span.adapter is not None:
            pointers[row : row + span.count] = [span.adapter] * span.count
        row += span.count
    return pointers
