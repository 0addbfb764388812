"""Decoder layers of the functions in ``kernels.c``: bfloat16 on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.protocol import KVCache
from outrider.kernels import native as c
from outrider.kernels.attention.attention import AttentionPlan, Piece, keys_of
from outrider.kernels.backends.base import Dimensions, LayerForward, LayerWeights, unfused_layer
from outrider.kernels.linear.batch_invariance import few_sizes
from outrider.kernels.linear.brgemm_linear import BrgemmLinear
from outrider.kernels.norm import RMSNorm

_FEW = 32  # rows of a call of every linear layer (``kernels.linear.batch_invariance``)
_SEEN = 64  # keys come in multiples of this many
_DEPTH = 32  # and the inputs of their products with queries


class NativeBackend:
    """Fuses what torch would compute in several operations; a whole layer is one call where brgemm is there."""

    def __init__(self, dimensions: Dimensions, library: ctypes.CDLL) -> None:
        self._of, self._library = dimensions, library
        every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
        self._silu = F.silu(every).float()
        self._described: dict[int, tuple[LayerWeights, c.LayerStruct | None]] = {}

    def padded_rows(self, count: int, alone: bool) -> int:
        """What linear layers would pad to, once here rather than in every one of them."""
        return max(2, few_sizes(count)) if count <= _FEW else count

    def add_rmsnorm(self, x: Tensor, y: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        rows, d = x.shape
        out = torch.empty_like(x)
        total = x if y is None else torch.empty_like(x)
        other = None if y is None else y.data_ptr()
        self._library.add_rmsnorm(
            rows, d, x.data_ptr(), other, norm.weight.data_ptr(), norm.eps, total.data_ptr(), out.data_ptr()
        )
        return total, out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape
        out = gate_up.new_empty(rows, width // 2)
        self._library.silu_mul(rows, width // 2, gate_up.data_ptr(), self._silu.data_ptr(), out.data_ptr())
        return out

    def layers(self, plan: AttentionPlan, cache: KVCache, rotation: Tensor) -> LayerForward:
        """Layers of ``BrgemmLinear`` are fused, others computed operation by operation; either gives the same bits."""
        functions = c.brgemm_functions() if self._of.head_dim % _DEPTH == 0 else None
        attention = _Attention(self._library, self._of, plan, cache, rotation, functions)
        unfused, fused = unfused_layer(self, attention), None

        def forward(layer: LayerWeights, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
            nonlocal fused
            described = self._describe(layer)
            if functions is None or described is None:
                return unfused(layer, x, y)
            fused = fused or _FusedLayers(attention, functions, layer, self._silu)
            return fused(layer.index, described, x, y)

        return forward

    def _describe(self, layer: LayerWeights) -> c.LayerStruct | None:
        """The layer as C sees it, or None if it has parts that only Python can run."""
        known = self._described.get(layer.index)
        if known is None or known[0] is not layer:  # a view of the model has layers of its own
            known = self._described[layer.index] = layer, _described(layer)
        return known[1]


class _Attention:
    """Attention of one forward pass: queries are written where the pieces of the plan want them; nothing is copied."""

    def __init__(
        self,
        library: ctypes.CDLL,
        dimensions: Dimensions,
        plan: AttentionPlan,
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
        self.described = (c.AttentionStruct * len(plan.pieces))()
        self.held: list[object] = []  # what addresses in ``described`` point to
        for i, (piece, q) in enumerate(zip(plan.pieces, queries, strict=True)):
            if functions is None:
                self._parts.append(self._fused(piece, q, i))
            else:
                self.described[i] = self._describe(piece, q)
                self._parts.append(self._by_blocks(i, functions))

    def __call__(self, layer: LayerWeights, qkv: Tensor) -> Tensor:
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

    def _describe(self, piece: Piece, q: Tensor) -> c.AttentionStruct:
        d, (tiles, _, rows, _) = self.of, q.shape
        index = _rows(self.cache, piece.slot, piece.reach)
        index = index[: piece.keys] if piece.order is None else index[piece.order.numpy()]
        seen = np.array([min(-(-keys // _SEEN) * _SEEN, piece.keys) for keys in piece.seen])
        self.held += [index, seen, piece.mask]
        return c.AttentionStruct(
            *(tiles, rows, d.head_dim, d.kv_heads, d.group, d.head_dim**-0.5),
            *(q.data_ptr(), index.ctypes.data, piece.keys, len(index) if index.ndim == 2 else 1),
            *(seen.ctypes.data, piece.mask.data_ptr()),
        )


class _FusedLayers:
    """The layers of one forward pass, each of them one call."""

    def __init__(self, attention: _Attention, functions: tuple[int, int], layer: LayerWeights, silu: Tensor) -> None:
        """``layer``: any of them, for its sizes."""
        self._attention, self._functions = attention, functions
        rows = len(attention.out)
        d, wide = layer.qkv.in_features, layer.down.in_features
        widths = (d, d, layer.qkv.out_features, 2 * wide, wide)
        memory = [torch.empty(rows, width, dtype=torch.bfloat16) for width in widths]
        self._x, self._y = (torch.empty(rows, layer.down.out_features, dtype=torch.bfloat16) for _ in range(2))
        slots = (ctypes.c_void_p * len(attention.slots))(*(slots.ctypes.data for slots in attention.slots))
        total, normed, qkv, gates, inner = (each.data_ptr() for each in memory)
        self._run = c.ForwardStruct(
            *(rows, len(attention.places), len(attention.every), len(attention.slots)),
            *(attention.places.ctypes.data, attention.every.ctypes.data, attention.rotation.data_ptr()),
            *(silu.data_ptr(), ctypes.addressof(attention.described), ctypes.addressof(slots)),
            *(attention.q.data_ptr(), total, normed, qkv, attention.out.data_ptr(), gates, inner),
        )
        self._held = memory, slots

    def __call__(self, index: int, layer: c.LayerStruct, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        pool = self._attention.cache.pool
        self._attention.library.decoder_layer(
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


def _described(layer: LayerWeights) -> c.LayerStruct | None:
    dense = [
        part.described for part in (layer.qkv, layer.out, layer.gate_up, layer.down) if isinstance(part, BrgemmLinear)
    ]
    if len(dense) < 4:
        return None
    norms = layer.attention_norm.weight.data_ptr(), layer.mlp_norm.weight.data_ptr(), *_norms(layer)
    return c.LayerStruct(*norms, *dense, layer.attention_norm.eps)


def _norms(layer: LayerWeights) -> tuple[int | None, int | None]:
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
