"""Rows of any texts in one call, with our attention over the cache, independent of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.protocol import KVCache
from outrider.models.batch import Span
from outrider_torch.kernels.attention.attention import AttentionPlan, Visible, attend, plan
from outrider_transformers.calls import Call, MaskFunction
from outrider_transformers.errors import NotBridgedError
from outrider_transformers.layout import Layout, LayoutRows


class PackedCall(Call):
    """Writes keys and values to the cache, where attention reads each row's own text."""

    def __init__(
        self, cache: KVCache | None, layout: Layout | None, spans: Sequence[Span], positions: Sequence[int], seen: int
    ) -> None:
        """``positions``: the spans' rows come first, then filler. Without a cache, attention gives zeros."""
        super().__init__(layout, positions, seen)
        self._cache, self._spans = cache, spans
        self._rows = sum(span.count for span in spans)
        self._masks: dict[int, tuple[Tensor, MaskFunction]] = {}
        self._plans: dict[tuple[int, int, int], AttentionPlan] = {}

    def mask(self, function: MaskFunction, device: torch.device) -> Tensor:
        """A placeholder: attention calls that get it use the window of ``function``."""
        stand_in = torch.ones(1, 1, len(self.positions), 1, dtype=torch.bool, device=device)
        self._masks[id(stand_in)] = (stand_in, function)
        return stand_in

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float | None,
        cap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """As ``Call.attend``."""
        call = self._next(k, v)
        rows, heads, n = q.shape[2], q.shape[1], self._rows
        if rows != len(self.positions) or k.shape[2] != rows:
            raise NotBridgedError(f"attention of {rows} rows over {k.shape[2]} in a call of {len(self.positions)}")
        if self._cache is None or self._layout is None:
            return q.new_zeros(1, rows, heads, v.shape[-1])
        own = self._layout.calls[call]
        if heads % own.kv_heads:
            raise NotBridgedError(f"{heads} query heads do not share {own.kv_heads} key heads evenly")
        self._write(self._cache, self._layout, call, *(x[0].transpose(0, 1) for x in (k, v)))
        found = attend(
            F.pad(q[0, :, :n].transpose(0, 1), (0, own.dim - own.key_dim)).contiguous(),
            LayoutRows(self._cache, self._layout),
            call,
            self._plan(mask, heads // own.kv_heads, own.kv_heads, q),
            own.key_dim**-0.5 if scale is None else float(scale),
            cap,
            sinks,
        )
        found = found.view(n, heads, own.dim)[..., : own.value_dim]
        return F.pad(found, (0, 0, 0, 0, 0, rows - n))[None]

    def _write(self, cache: KVCache, layout: Layout, call: int, k: Tensor, v: Tensor) -> None:
        first = 0
        for span in self._spans:
            part = slice(first, first + span.count)
            layout.write(cache, call, span.slot, span.start, k[part], v[part])
            first += span.count

    def _plan(self, mask: Tensor | None, group: int, kv_heads: int, q: Tensor) -> AttentionPlan:
        key = (id(mask), group, kv_heads)
        if key not in self._plans:
            visible: Visible | None = None
            if mask is not None:
                if id(mask) not in self._masks:
                    raise NotBridgedError("attention has a mask of the model's own making")
                visible = _visible(self._masks[id(mask)][1], q.device)
            self._plans[key] = plan(
                self._spans,
                group=group,
                kv_heads=kv_heads,
                window=None,
                rows=self._rows,
                dtype=q.dtype,
                device=q.device,
                visible=visible,
            )
        return self._plans[key]


def _visible(function: MaskFunction, device: torch.device) -> Visible:
    zero = torch.zeros((), dtype=torch.int64, device=device)
    return lambda at, columns: function(zero, zero, at, columns).expand(len(at), columns.shape[1])


def between(spans: Sequence[Span], first: int, end: int) -> list[Span]:
    """The parts of spans with packed rows ``first`` to ``end``."""
    ends = [0]
    for span in spans:
        ends.append(ends[-1] + span.count)
    return [
        _part(span, max(first, a) - a, min(end, b) - a)
        for span, (a, b) in zip(spans, pairwise(ends), strict=True)
        if a < end and first < b
    ]


def _part(span: Span, first: int, end: int) -> Span:
    """The span's new rows from ``first`` to ``end``; rows before them count as cached.

    ::

        mask of 3 rows   x . .      rows 1 to 2    x x .      rows 0 to 1    x . .
                         x x .                     x . x                     x x .
                         x . x                     (all 3 columns)           (2 columns)
    """
    later = span.count - end
    causal = span.count if span.mask is None else span.count - len(span.mask)
    if span.mask is None or end <= causal:
        return Span(span.slot, span.start + first, end - first)
    rows, width = span.mask.shape
    mask = span.mask[max(first - causal, 0) : rows - later, : width - later]
    return Span(span.slot, span.start + first, end - first, mask)
