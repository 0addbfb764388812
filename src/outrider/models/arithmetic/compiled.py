"""The arithmetic of ``kernels.c``: bfloat16 on a CPU."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.protocol import KVCache
from outrider.models.arithmetic.base import Attention, Dimensions, Heads
from outrider.models.attention import Piece, Plan, keys_of
from outrider.models.norm import RMSNorm
from outrider.models.row_range import few_sizes

_FEW = 32  # rows of a call of every linear layer (``models.row_range``)


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

    def attention(self, plan: Plan, cache: KVCache, rotation: Tensor) -> Attention:
        return _Attention(self._library, self._of, plan, cache, rotation)


class _Attention:
    """One run's attention: queries are written where the pieces of the plan want them, and no tensor is copied."""

    def __init__(
        self, library: ctypes.CDLL, dimensions: Dimensions, plan: Plan, cache: KVCache, rotation: Tensor
    ) -> None:
        self._library, self._of, self._cache = library, dimensions, cache
        self._places = _places(plan, cache)
        self._rotation = rotation.contiguous()
        self._pieces = plan.pieces
        d = dimensions
        tables = [_slots(piece, d) for piece in plan.pieces]
        starts = np.cumsum([0, *(len(table) for table in tables)])
        for table, start in zip(tables, starts, strict=False):
            table[:, 1] += start * d.heads * d.head_dim
        self._slots = np.concatenate(tables)
        self._counts = [len(table) for table in tables]
        self._starts = [int(start) for start in starts[:-1]]
        self._q = torch.empty(len(self._slots) * d.heads * d.head_dim, dtype=torch.bfloat16)
        shapes = [(p.mask.shape[0], d.kv_heads, p.mask.shape[2], d.head_dim) for p in plan.pieces]
        parts = torch.split(self._q, [count * d.heads * d.head_dim for count in self._counts])
        self._queries = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        self._out = torch.zeros(len(rotation), d.heads * d.head_dim, dtype=torch.bfloat16)  # rows of padding stay zero

    def __call__(self, heads: Heads, qkv: Tensor) -> Tensor:
        d, pool, slots = self._of, self._cache.pool, self._slots.ctypes.data
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
            len(self._slots),
            slots,
            self._q.data_ptr(),
        )
        for piece, q, count, start in zip(self._pieces, self._queries, self._counts, self._starts, strict=True):
            k, v = keys_of(self._cache, heads.layer, piece)
            if len(k) < len(q):
                k, v = k.expand(len(q), -1, -1, -1), v.expand(len(q), -1, -1, -1)
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=piece.mask).contiguous()
            before = start * d.heads * d.head_dim * attended.element_size()  # the slots count from the first piece on
            self._library.collect_heads(
                count,
                slots + start * self._slots.strides[0],
                d.kv_heads,
                d.group * d.head_dim,
                attended.data_ptr() - before,
                self._out.data_ptr(),
            )
        return self._out


def _places(plan: Plan, cache: KVCache) -> np.ndarray:
    """int64 [T]: the row of the cache's pool that takes each row's keys and values."""
    block, parts = cache.pool.block, []
    for span, _ in plan.spans:
        rows = np.arange(span.start, span.start + span.count)
        table = np.asarray(cache.table(span.slot, span.start + span.count))
        parts.append(table[rows // block] * block + rows % block)
    return np.concatenate(parts)


def _slots(piece: Piece, d: Dimensions) -> np.ndarray:
    """int64 [tiles * tile, 3]: the ``slot`` of kernels.c for each row of the piece's tiles."""
    tile, step = piece.mask.shape[2] // d.group, piece.mask.shape[2] * d.head_dim
    slots = np.full((piece.mask.shape[0] * tile, 3), -1, dtype=np.int64)
    slots[: len(piece.packed), 0] = piece.packed
    at = np.arange(len(slots))
    slots[:, 1] = at // tile * step * d.kv_heads + at % tile * d.group * d.head_dim
    slots[:, 2] = step
    return slots
