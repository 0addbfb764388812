"""The arithmetic of ``kernels.c``: bfloat16 on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.protocol import KVCache
from outrider.kernels import native as c
from outrider.kernels.attention.attention import Piece, Plan, keys_of
from outrider.kernels.backends.base import Dimensions, Layer, Through, in_parts
from outrider.kernels.linear.batch_invariance import few_sizes
from outrider.kernels.linear.brgemm_linear import BlockedLinear
from outrider.kernels.norm import RMSNorm

_FEW = 32  # rows of a call of every linear layer (``models.row_range``)
_SEEN = 64  # keys come in multiples of this many
_DEPTH = 32  # and the inputs of their products with queries


class Compiled:
    def __init__(self, dimensions: Dimensions, library: ctypes.CDLL) -> None:
        self._of, self._library = dimensions, library
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
        self._silu = F.silu(every).float()
        self._described: dict[int, tuple[Layer, c.Layer | None]] = {}

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

    def through(self, plan: Plan, cache: KVCache, rotation: Tensor) -> Through:
        """Layers of blocks as a whole, others in parts; either gives the same bits."""
        functions = c.products() if self._of.head_dim % _DEPTH == 0 else None
        attention = _Attention(self._library, self._of, plan, cache, rotation, functions)
        parts, wholes = in_parts(self, attention), None

        def through(layer: Layer, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
            nonlocal wholes
            described = self._describe(layer)
            if functions is None or described is None:
                return parts(layer, x, y)
            wholes = wholes or _Wholes(attention, functions, layer, self._silu)
            return wholes(layer.index, described, x, y)

        return through

    def _describe(self, layer: Layer) -> c.Layer | None:
        """The layer as C sees it, or None if it has parts that only Python can run."""
        known = self._described.get(layer.index)
        if known is None or known[0] is not layer:  # a view of the model has layers of its own
            known = self._described[layer.index] = layer, _described(layer)
        return known[1]


class _Attention:
    """One run's attention: queries are written where the pieces of the plan want them, and no tensor is copied."""

    def __init__(
        self,
        library: ctypes.CDLL,
        dimensions: Dimensions,
        plan: Plan,
        cache: KVCache,
        rotation: Tensor,
        functions: tuple[int, int] | None,
    ) -> None:
        """``functions``: torch's products of blocks; None: its fused attention."""
        self.library, self.of, self.cache = library, dimensions, cache
        d, shapes = dimensions, [p.mask.shape for p in plan.pieces]
        self.places = np.concatenate(
            [_rows(cache, span.slot, span.start + span.count)[span.start :] for span, _ in plan.spans]
        )
        self.rotation = rotation.contiguous()
        self.slots = [_slots(piece, d) for piece in plan.pieces]
        sizes = [len(slots) * d.heads * d.head_dim for slots in self.slots]
        self.q = torch.empty(sum(sizes), dtype=torch.bfloat16)
        queries = [
            part.view(shape[0], d.kv_heads, shape[2], d.head_dim)
            for part, shape in zip(torch.split(self.q, sizes), shapes, strict=True)
        ]
        self.every = np.concatenate(self.slots)  # of all pieces, one behind the other
        self.every[:, 1] += np.repeat(np.cumsum([0, *sizes[:-1]]), [len(slots) for slots in self.slots])
        self.out = torch.zeros(len(rotation), d.heads * d.head_dim, dtype=torch.bfloat16)  # rows of padding stay zero
        self._parts: list[Callable[[int], None]] = []  # of each piece, given the layer
        self.described = (c.Attention * len(plan.pieces))()
        self.held: list[object] = []  # what addresses in ``described`` point to
        for i, (piece, q) in enumerate(zip(plan.pieces, queries, strict=True)):
            if functions is None:
                self._parts.append(self._fused(piece, q, i))
            else:
                self.described[i] = self._describe(piece, q)
                self._parts.append(self._by_blocks(i, functions))

    def __call__(self, layer: Layer, qkv: Tensor) -> Tensor:
        d, pool = self.of, self.cache.pool
        self.library.place_heads(
            len(self.places),
            d.kv_heads,
            d.group,
            d.head_dim,
            qkv.data_ptr(),
            self.rotation.data_ptr(),
            *_norms(layer),
            layer.attention_norm.eps,
            self.places.ctypes.data,
            pool.k[layer.index].data_ptr(),
            pool.v[layer.index].data_ptr(),
            len(self.every),
            self.every.ctypes.data,
            self.q.data_ptr(),
        )
        for part in self._parts:
            part(layer.index)
        return self.out

    def _fused(self, piece: Piece, q: Tensor, i: int) -> Callable[[int], None]:
        slots, d = self.slots[i], self.of

        def attend(layer: int) -> None:
            k, v = keys_of(self.cache, layer, piece)
            if len(k) < len(q):
                k, v = k.expand(len(q), -1, -1, -1), v.expand(len(q), -1, -1, -1)
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=piece.mask).contiguous()
            width, out = d.group * d.head_dim, self.out.data_ptr()
            self.library.collect_heads(len(slots), slots.ctypes.data, d.kv_heads, width, attended.data_ptr(), out)

        return attend

    def _by_blocks(self, i: int, functions: tuple[int, int]) -> Callable[[int], None]:
        piece, slots, pool = ctypes.addressof(self.described[i]), self.slots[i].ctypes.data, self.cache.pool

        def attend(layer: int) -> None:
            k, v = pool.k[layer].data_ptr(), pool.v[layer].data_ptr()
            self.library.attend(*functions, piece, k, v, slots, self.out.data_ptr())

        return attend

    def _describe(self, piece: Piece, q: Tensor) -> c.Attention:
        d, (tiles, _, rows, _) = self.of, q.shape
        index = _rows(self.cache, piece.slot, piece.reach)
        index = index[: piece.keys] if piece.order is None else index[piece.order.numpy()]
        seen = np.array([min(-(-keys // _SEEN) * _SEEN, piece.keys) for keys in piece.seen])
        self.held += [index, seen, piece.mask]
        return c.Attention(
            *(tiles, rows, d.head_dim, d.kv_heads, d.group, d.head_dim**-0.5),
            *(q.data_ptr(), index.ctypes.data, piece.keys, len(index) if index.ndim == 2 else 1),
            *(seen.ctypes.data, piece.mask.data_ptr()),
        )


class _Wholes:
    """One run's layers, each of them one call."""

    def __init__(self, attention: _Attention, functions: tuple[int, int], layer: Layer, silu: Tensor) -> None:
        """``layer``: any of them, for its sizes."""
        self._attention, self._functions = attention, functions
        rows = len(attention.out)
        d, wide = layer.qkv.in_features, layer.down.in_features
        widths = (d, d, layer.qkv.out_features, 2 * wide, wide)
        memory = [torch.empty(rows, width, dtype=torch.bfloat16) for width in widths]
        self._x, self._y = (torch.empty(rows, layer.down.out_features, dtype=torch.bfloat16) for _ in range(2))
        slots = (ctypes.c_void_p * len(attention.slots))(*(slots.ctypes.data for slots in attention.slots))
        total, normed, qkv, gates, inner = (each.data_ptr() for each in memory)
        self._run = c.Run(
            *(rows, len(attention.places), len(attention.every), len(attention.slots)),
            *(attention.places.ctypes.data, attention.every.ctypes.data, attention.rotation.data_ptr()),
            *(silu.data_ptr(), ctypes.addressof(attention.described), ctypes.addressof(slots)),
            *(attention.q.data_ptr(), total, normed, qkv, attention.out.data_ptr(), gates, inner),
        )
        self._held = memory, slots

    def __call__(self, index: int, layer: c.Layer, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        pool = self._attention.cache.pool
        self._attention.library.through(
            *self._functions,
            ctypes.addressof(layer),
            ctypes.addressof(self._run),
            x.data_ptr(),
            None if y is None else y.data_ptr(),
            pool.k[index].data_ptr(),
            pool.v[index].data_ptr(),
            self._x.data_ptr(),
            self._y.data_ptr(),
        )
        return self._x, self._y


def _described(layer: Layer) -> c.Layer | None:
    dense = [
        part.described for part in (layer.qkv, layer.out, layer.gate_up, layer.down) if isinstance(part, BlockedLinear)
    ]
    if len(dense) < 4:
        return None
    norms = layer.attention_norm.weight.data_ptr(), layer.mlp_norm.weight.data_ptr(), *_norms(layer)
    return c.Layer(*norms, *dense, layer.attention_norm.eps)


def _norms(layer: Layer) -> tuple[int | None, int | None]:
    """Addresses of the weights that norm each head of queries and of keys."""
    return tuple(None if norm is None else norm.weight.data_ptr() for norm in (layer.q_norm, layer.k_norm))  # type: ignore[return-value]


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
