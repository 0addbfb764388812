"""Layout of a foreign model's keys and values, per attention call, in the rows of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from outrider.cache.protocol import KVCache
from outrider_transformers.errors import NotBridgedError


@dataclass(frozen=True)
class Heads:
    """Shapes of keys and values of one attention call."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def dim(self) -> int:
        """Dimensions of a head in the cache: the shorter of key and value is padded with zeros."""
        return max(self.key_dim, self.value_dim)


class Layout:
    """A cache has rows of one shape for all layers; differing calls share rows of the largest width."""

    def __init__(self, calls: Sequence[Heads]) -> None:
        """``calls``: of one forward pass, in order. A layer that runs twice has two."""
        self.calls = tuple(calls)
        alike = len({(heads.kv_heads, heads.dim) for heads in calls}) == 1
        self.kv_heads = calls[0].kv_heads if alike else 1
        self.head_dim = calls[0].dim if alike else max((h.kv_heads * h.dim for h in calls), default=1)

    def heads(self, call: int, k: Tensor, v: Tensor) -> Heads:
        """The heads of call ``call``. Raises if k, v: [1, kv_heads, n, d] do not match them."""
        found = heads_of(k, v)
        if call >= len(self.calls) or self.calls[call] != found:
            raise NotBridgedError(f"attention call {call} has other keys and values than in the first pass: {found}")
        return found

    def write(self, cache: KVCache, call: int, slot: int, start: int, k: Tensor, v: Tensor) -> None:
        """Store k, v: [n, kv_heads, key_dim or value_dim] as rows from ``start`` on."""
        n, heads = len(k), self.calls[call]
        width = self.kv_heads * self.head_dim
        k, v = (F.pad(x, (0, heads.dim - x.shape[-1])).reshape(n, -1) for x in (k, v))
        k, v = (F.pad(x, (0, width - x.shape[-1])).view(n, self.kv_heads, self.head_dim) for x in (k, v))
        cache.write(call, slot, start, k, v)

    def read(self, cache: KVCache, call: int, slot: int, rows: int) -> tuple[Tensor, Tensor]:
        """Keys and values [rows, kv_heads, dim], contiguous, of the call's own heads."""
        heads = self.calls[call]
        k, v = cache.read(call, slot, rows)
        if (heads.kv_heads, heads.dim) == (self.kv_heads, self.head_dim):
            return k, v
        used, shape = heads.kv_heads * heads.dim, (rows, heads.kv_heads, heads.dim)
        return k[:, 0, :used].reshape(shape).contiguous(), v[:, 0, :used].reshape(shape).contiguous()


@dataclass(frozen=True)
class LayoutRows:
    """A cache for ``attend``: rows in the shape of each call's own heads."""

    cache: KVCache
    layout: Layout

    def read(self, layer: int, slot: int, rows: int) -> tuple[Tensor, Tensor]:
        """As in ``KVCache``."""
        return self.layout.read(self.cache, layer, slot, rows)


def heads_of(k: Tensor, v: Tensor) -> Heads:
    """The ``Heads`` of k, v: [1, kv_heads, n, d]."""
    if k.dim() != 4 or k.shape[0] != 1 or k.shape[:3] != v.shape[:3]:
        raise NotBridgedError(f"attention has keys {list(k.shape)} and values {list(v.shape)}, not [1, heads, rows, d]")
    return Heads(k.shape[1], k.shape[3], v.shape[3])
