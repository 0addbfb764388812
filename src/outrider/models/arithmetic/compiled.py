"""The arithmetic of ``kernels.c``: bfloat16 on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.protocol import KVCache
from outrider.models.arithmetic import base
from outrider.models.arithmetic.base import Dimensions, Heads
from outrider.models.attention import Piece, Plan, keys_of
from outrider.models.compiled import Attention, products
from outrider.models.norm import RMSNorm
from outrider.models.row_range import few_sizes

_FEW = 32  # rows of a call of every linear layer (``models.row_range``)
_SEEN = 64  # keys come in multiples of this many
_DEPTH = 32  # and the inputs of their products with queries


class Compiled:
    def __init__(self, dimensions: Dimensions, library: ctypes.CDLL) -> None:
        self._of, self._library = dimensions, library
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
        self._silu = F.silu(every).float()

    def rows(self, count: int, alone: bool) -> int:
        """What linear layers would pad to, once here rather than in every one of them."""
        return max(2, few_sizes(count)) if count <= _FEW else count

    def add_norm(self, x: Tensor, y: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        rows, d = x.shape
        out = torch.empty_like(x)
        total = x if y is None else torch.empty_like(x)
        other = None if y is None else y.data_ptr()
        self._library.add_norm(
            rows, d, x.data_ptr(), other, norm.weight.data_ptr(), norm.eps, total.data_ptr(), out.data_ptr()
        )
        return total, out

    def gated(self, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape
        out = gate_up.new_empty(rows, width // 2)
        self._library.gated(rows, width // 2, gate_up.data_ptr(), self._silu.data_ptr(), out.data_ptr())
        return out

    def attention(self, plan: Plan, cache: KVCache, rotation: Tensor) -> base.Attention:
        """By blocks where there are matrix tiles, else by torch's fused kernel."""
        run = _Run(self._library, self._of, plan, cache, rotation)
        functions = products() if self._of.head_dim % _DEPTH == 0 else None
        if functions is None:
            run.parts = [run.fused(piece, i) for i, piece in enumerate(plan.pieces)]
        else:
            run.parts = [run.by_blocks(piece, i, functions) for i, piece in enumerate(plan.pieces)]
        return run


class _Run:
    """One run's attention: queries are written where the pieces of the plan want them, and no tensor is copied."""

    def __init__(
        self, library: ctypes.CDLL, dimensions: Dimensions, plan: Plan, cache: KVCache, rotation: Tensor
    ) -> None:
        self._library, self._of, self._cache = library, dimensions, cache
        d, shapes = dimensions, [p.mask.shape for p in plan.pieces]
        self._places = np.concatenate(
            [_rows(cache, span.slot, span.start + span.count)[span.start :] for span, _ in plan.spans]
        )
        self._rotation = rotation.contiguous()
        self._slots = [_slots(piece, d) for piece in plan.pieces]
        sizes = [len(slots) * d.heads * d.head_dim for slots in self._slots]
        self._q = torch.empty(sum(sizes), dtype=torch.bfloat16)
        self._queries = [
            part.view(shape[0], d.kv_heads, shape[2], d.head_dim)
            for part, shape in zip(torch.split(self._q, sizes), shapes, strict=True)
        ]
        self._all = np.concatenate(self._slots)  # of all pieces, one behind the other
        self._all[:, 1] += np.repeat(np.cumsum([0, *sizes[:-1]]), [len(slots) for slots in self._slots])
        self._out = torch.zeros(len(rotation), d.heads * d.head_dim, dtype=torch.bfloat16)  # rows of padding stay zero
        self.parts: list[Callable[[int], None]] = []  # of each piece, given the layer

    def __call__(self, heads: Heads, qkv: Tensor) -> Tensor:
        d, pool = self._of, self._cache.pool
        norms = [None if norm is None else norm.weight.data_ptr() for norm in (heads.q_norm, heads.k_norm)]
        self._library.place_heads(
            len(self._places),
            d.kv_heads,
            d.group,
            d.head_dim,
            qkv.data_ptr(),
            self._rotation.data_ptr(),
            *norms,
            0.0 if heads.q_norm is None else heads.q_norm.eps,
            self._places.ctypes.data,
            pool.k[heads.layer].data_ptr(),
            pool.v[heads.layer].data_ptr(),
            len(self._all),
            self._all.ctypes.data,
            self._q.data_ptr(),
        )
        for part in self.parts:
            part(heads.layer)
        return self._out

    def fused(self, piece: Piece, i: int) -> Callable[[int], None]:
        q, slots, d = self._queries[i], self._slots[i], self._of

        def attend(layer: int) -> None:
            k, v = keys_of(self._cache, layer, piece)
            if len(k) < len(q):
                k, v = k.expand(len(q), -1, -1, -1), v.expand(len(q), -1, -1, -1)
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=piece.mask).contiguous()
            width, out = d.group * d.head_dim, self._out.data_ptr()
            self._library.collect_heads(len(slots), slots.ctypes.data, d.kv_heads, width, attended.data_ptr(), out)

        return attend

    def by_blocks(self, piece: Piece, i: int, functions: tuple[int, int]) -> Callable[[int], None]:
        q, d, pool = self._queries[i], self._of, self._cache.pool
        index = _rows(self._cache, piece.slot, piece.reach)
        index = index[: piece.keys] if piece.order is None else index[piece.order.numpy()]
        seen = np.array([min(-(-keys // _SEEN) * _SEEN, piece.keys) for keys in piece.seen])
        tiles, _, rows, _ = q.shape
        of = Attention(
            *(tiles, rows, d.head_dim, d.kv_heads, d.group, d.head_dim**-0.5),
            *(q.data_ptr(), None, None, index.ctypes.data, piece.keys, len(index) if index.ndim == 2 else 1),
            *(seen.ctypes.data, piece.mask.data_ptr()),
        )
        held = index, seen, self._slots[i]  # what the addresses point to
        arguments = *functions, ctypes.addressof(of), held[2].ctypes.data, self._out.data_ptr()

        def attend(layer: int) -> None:
            of.k, of.v = pool.k[layer].data_ptr(), pool.v[layer].data_ptr()
            self._library.attend(*arguments)

        attend.held = held  # type: ignore[attr-defined]
        return attend


def _rows(cache: KVCache, slot: int, count: int) -> np.ndarray:
    """int64 [count]: the rows of the cache's pool that hold a sequence's first ``count`` tokens, or may be read so."""
    rows, block = np.arange(count), cache.pool.block
    table = np.asarray(cache.table(slot, count))
    return np.minimum(table[rows // block] * block + rows % block, cache.pool.filler)


def _slots(piece: Piece, d: Dimensions) -> np.ndarray:
    """int64 [tiles * tile, 3]: the ``slot`` of kernels.c for each row of the piece's tiles."""
    tile, step = piece.mask.shape[2] // d.group, piece.mask.shape[2] * d.head_dim
    slots = np.full((piece.mask.shape[0] * tile, 3), -1, dtype=np.int64)
    slots[: len(piece.packed), 0] = piece.packed
    at = np.arange(len(slots))
    slots[:, 1] = at // tile * step * d.kv_heads + at % tile * d.group * d.head_dim
    slots[:, 2] = step
    return slots
