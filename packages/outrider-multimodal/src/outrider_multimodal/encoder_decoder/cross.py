"""Keys and values of an encoder's output: constant, one set per request, attended to by each of its rows."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.models.batch import Span
from outrider.models.native_passes import check_status
from outrider.native.context import NativeContext, current_context
from outrider.native.library import native_library
from outrider.native.structs import FixedKeysStruct
from outrider_torch.kernels.attention.attention import AttentionPiece, AttentionPlan, attend
from outrider_torch.kernels.attention.tree_tiles import TILE, padded

_CHUNK = 128  # keys that the native library computes with at a time
_LANES = 16  # the dimensions of a value are padded to a multiple of this


class CrossKeys(Protocol):
    """Cross-attention keys and values of every decoder layer."""

    def attend(self, layer: int, q: Tensor, scale: float | None) -> Tensor:
        """Attention of q: [n, heads, head_dim], each row to all keys -> [n, heads * head_dim].

        ``scale``: of scores; None: 1 / sqrt(head_dim).
        """
        ...


class TorchCrossKeys:
    """Keys and values in torch. The source is padded to a whole block with masked zeros."""

    def __init__(self, keys_values: Sequence[Tensor], heads: int) -> None:
        """``keys_values``: of each layer [n, 2 * heads * head_dim], keys first."""
        self._heads, self._length = heads, len(keys_values[0])
        self._rows = padded(self._length)
        self._held = [self._laid_out(each) for each in keys_values]
        self._mask = torch.zeros(1, 1, TILE, self._rows, dtype=keys_values[0].dtype, device=keys_values[0].device)
        self._mask[..., self._length :] = -torch.inf
        self._plans: dict[int, AttentionPlan] = {}  # by number of rows

    def _laid_out(self, keys_values: Tensor) -> tuple[Tensor, Tensor]:
        grown = F.pad(keys_values, (0, 0, 0, self._rows - self._length))
        k, v = (part.reshape(self._rows, self._heads, -1) for part in grown.chunk(2, dim=-1))
        return k.contiguous(), v.contiguous()

    def read(self, layer: int, slot: int, rows: int) -> tuple[Tensor, Tensor]:
        """As ``KVCache.read``, the same for every slot."""
        k, v = self._held[layer]
        return k[:rows], v[:rows]

    def attend(self, layer: int, q: Tensor, scale: float | None) -> Tensor:
        plan = self._plans.get(len(q))
        if plan is None:
            plan = self._plans[len(q)] = self._plan(len(q))
        return attend(q, self, layer, plan, scale)

    def _plan(self, count: int) -> AttentionPlan:
        """The plan for ``count`` rows, in the tiles of ``kernels.attention``."""
        tiles = max(-(-count // TILE), 2 if self._heads == 1 else 1)
        mask = self._mask.expand(tiles, -1, -1, -1)
        piece = AttentionPiece(
            0, slice(0, count), self._rows, mask, None, self._rows, range(count), [self._length] * tiles
        )
        return AttentionPlan(((Span(0, 0, count), 0),), (piece,), None)


class NativeCrossKeys:
    """Keys and values in the native library's layout (``outrider_fixed_keys`` of native.h)."""

    def __init__(
        self, keys_values: Sequence[Tensor], heads: int, dtype: torch.dtype, context: NativeContext | None = None
    ) -> None:
        """As ``TorchCrossKeys``. ``dtype``: of keys and values, float32 or bfloat16. ``context``: to attend in."""
        self._library, self._context = native_library(), context or current_context()
        self._layers = [self._laid_out(each, heads, dtype) for each in keys_values]

    def _laid_out(self, keys_values: Tensor, heads: int, dtype: torch.dtype) -> tuple[FixedKeysStruct, Tensor, Tensor]:
        length, width = len(keys_values), keys_values.shape[1] // (2 * heads)
        together = 2 if dtype == torch.bfloat16 and width % 2 == 0 else 1  # dimensions stored side by side
        dtype = dtype if together == 2 else torch.float32
        grown = F.pad(keys_values.to(dtype), (0, 0, 0, -length % _CHUNK))
        k, v = (part.reshape(len(grown), heads, width) for part in grown.chunk(2, dim=-1))
        k = k.view(-1, _CHUNK, heads, width // together, together).permute(2, 0, 3, 1, 4).contiguous()
        v = F.pad(v, (0, -width % _LANES)).transpose(0, 1).contiguous()
        struct = FixedKeysStruct(
            type=int(together == 2), heads=heads, head_dim=width, length=length, keys=k.data_ptr(), values=v.data_ptr()
        )
        return struct, k, v

    def attend(self, layer: int, q: Tensor, scale: float | None) -> Tensor:
        struct, rows = self._layers[layer][0], q.shape[0]
        q, out = q.contiguous(), torch.empty(rows, struct.heads * struct.head_dim)
        check_status(
            self._library.outrider_attend_fixed(
                self._context.address, ctypes.addressof(struct), rows, scale or 0.0, q.data_ptr(), out.data_ptr()
            )
        )
        return out
