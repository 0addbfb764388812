"""The matrices and vectors of a model, packed for the native library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.models.native_names import NEVER_ROUNDED, ROUTER
from outrider.models.native_stored import as_stored
from outrider.models.shard import ShardOf
from outrider.native.context import loading_context
from outrider.native.identity import PackedPlace
from outrider.native.packed import pack_all
from outrider.native.plans import Plan, Target
from outrider.native.stored import StoredTensor
from outrider.native.weights import NativeWeight, StoredRows, packed_bias, swapped_heads

_ROUNDED: Mapping[str, Target] = {"F32": "bfloat16", "BF16": "bfloat16"}

Stored = Mapping[str, Any]
"""Weights by canonical names: ``StoredTensor`` (views of files), arrays, or torch tensors on the CPU."""


def _take_rows(weight: StoredTensor, rows: slice) -> StoredTensor:
    order = np.arange(weight.shape[0], dtype=np.int64) if weight.order is None else weight.order
    return replace(weight, order=order[rows])


def _rows(outputs: range) -> slice:
    return slice(outputs.start, outputs.stop) if outputs else slice(0, 1)


class Packer:
    """Matrices and vectors of a model; it owns them."""

    def __init__(
        self,
        weights: Stored,
        target: Target | None,
        share: ShardOf | None = None,
        place: PackedPlace | None = None,
        rounded: Mapping[str, Target] = _ROUNDED,
    ) -> None:
        """
        Args:
            target: type that matrices are rounded to; None: those of ``rounded``, and other stored types stay.
            share: of matrices, the outputs that this process has; None: all.
            place: where packed weights are kept for later starts; None: nowhere.
            rounded: by stored type, the type that matrices are rounded to without ``target``.
        """
        self._rounded = rounded
        self._weights, self._target, self._share, self._place = weights, target, share, place
        self._matrices: dict[tuple[str, bool], NativeWeight] = {}
        self._vectors: list[NDArray[np.float32]] = []
        self._sizes: dict[str, int] = {}
        self.mapped_bytes = 0
        """Bytes of matrices that are mapped from a file."""

    def pack(self, names: Iterable[str], whole: Iterable[str]) -> None:
        """Pack all matrices of a model: this process's outputs of ``names``, and all outputs of ``whole``."""
        wanted = dict.fromkeys([*((name, self._share is None) for name in names), *((name, True) for name in whole)])
        plans, outputs = list[Plan](), list[range | None]()
        for name, is_whole in wanted:
            outputs.append(None if is_whole or self._share is None else self._share.outputs(name))
            plans.append(self.plan(name, outputs[-1]))
        made = list(zip(wanted, plans, outputs, strict=True))
        in_files = [plan.stored.mapped_file is not None for plan in plans]
        for place, kept in ((self._place, True), (None, False)):  # what is in no file cannot be compared with it later
            some = [each for each, in_file in zip(made, in_files, strict=True) if in_file == kept]
            panels = pack_all([plan for _, plan, _ in some], place)
            self.mapped_bytes += panels.mapped_bytes
            for (key, plan, rows), packed in zip(some, panels.of, strict=True):
                self._matrices[key] = self._made(key[0], plan, rows, packed)

    def plan(self, name: str, outputs: range | None = None) -> Plan:
        """``outputs``: those to pack; None: all. Of none the layout is kept, which all processes are to know."""
        weight = as_stored(self._weights[f"{name}.weight"])
        if weight.swapped:
            weight = swapped_heads(weight)
        if outputs is not None:
            weight = _take_rows(weight, _rows(outputs))
        keeps_floats = name.endswith(NEVER_ROUNDED) or (self._target is None and name.endswith(ROUTER))
        if keeps_floats and weight.type in _ROUNDED:
            return Plan(weight, "float32" if weight.type == "F32" else "bfloat16")
        return Plan(weight, self._target or self._rounded.get(weight.type))

    def _made(self, name: str, plan: Plan, outputs: range | None, panels: NDArray[np.uint8]) -> NativeWeight:
        bias = self.numbers(f"{name}.bias") if f"{name}.bias" in self._weights else None
        if bias is not None and outputs is not None:
            bias = bias[_rows(outputs)]
        made = NativeWeight(plan.struct, panels, packed_bias(bias, int(plan.struct.outputs)), loading_context())
        if outputs is not None and not outputs:
            plan.struct.outputs = 0
        kind = plan.target or plan.stored.type.lower()
        self._sizes[kind] = self._sizes.get(kind, 0) + made.nbytes
        return made

    def matrix(self, name: str) -> NativeWeight:
        """This process's outputs of a matrix."""
        return self._matrices[name, self._share is None]

    def whole_matrix(self, name: str) -> NativeWeight:
        return self._matrices[name, True]

    def in_file(self, name: str) -> bool:
        """Whether a matrix that is read row by row, as an embedding, is left in its file."""
        return isinstance(self._weights[f"{name}.weight"], StoredTensor) and self._target is None

    def rows(self, name: str) -> NativeWeight | StoredRows:
        """A matrix that is read row by row."""
        return StoredRows(self._weights[f"{name}.weight"]) if self.in_file(name) else self.whole_matrix(name)

    def release(self) -> None:
        """Forget the weights, once all are packed: they may lie in memory that others want back."""
        self._weights = {}

    def vector(self, name: str) -> NDArray[np.float32]:
        self._vectors.append(self.numbers(name))
        return self._vectors[-1]

    def own_heads(self, name: str) -> NDArray[np.float32]:
        """A vector of a number for each query head: those of this process."""
        whole = self.numbers(name)
        own = whole if self._share is None else whole[_rows(self._share.own_query_heads)]
        self._vectors.append(np.ascontiguousarray(own))
        return self._vectors[-1]

    def numbers(self, name: str) -> NDArray[np.float32]:
        return as_stored(self._weights[name]).numbers()

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self._matrices.values()) + sum(vector.nbytes for vector in self._vectors)

    @property
    def commonest(self) -> str:
        return max(self._sizes, key=self._sizes.__getitem__)
