"""One call of a foreign model: what its attention, masks and experts do while it runs, over rows of our cache.

transformers looks its attention function up by a name in the configuration, and hands it queries, keys and values
that are projected and rotated. The functions registered here find the call that is under way in ``CURRENT``, write
its keys and values to the cache, and attend as ``kernels.attention`` does: in calls whose shape changes no bit of a
row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache.protocol import KVCache
from outrider.kernels.attention.attention import AttentionPlan, Visible, attend, plan
from outrider.kernels.batch import Span
from outrider.models.bridge.errors import NotBridgedError
from outrider.models.bridge.layout import Heads, Layout, LayoutRows, heads_of

NAME = "outrider"
"""Of our functions among those of transformers."""

CURRENT: ContextVar[Call | None] = ContextVar("bridge_call", default=None)

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_WITHOUT_EFFECT = frozenset(
    "dropout sliding_window position_ids use_cache past_key_values cache_params cache_position output_attentions "
    "output_hidden_states return_dict output_router_logits logits_to_keep is_causal attention_mask position_embeddings "
    "use_return_dict layer_idx deterministic".split()
)
"""Arguments that change nothing here: windows come with the mask, positions are in queries and keys already."""


class Call:
    """Some rows of a batch on their way through the model, all of them in one call of it.

    ``call`` counts attention calls, not layers: a layer that a model runs twice has keys and values twice.
    """

    def __init__(
        self,
        cache: KVCache | None,
        layout: Layout | None,
        spans: Sequence[Span],
        positions: Sequence[int],
        seen: int = 0,
    ) -> None:
        """Without a cache heads are noted, and attention is 0.

        Args:
            positions: of all rows; the spans' come first.
            seen: what the model is told of the tokens before; rows of several texts have no one answer.
        """
        self.positions = positions
        self.seen = positions[0] if len(positions) == 1 else seen
        self.found: list[Heads] = []
        self._cache, self._layout, self._spans = cache, layout, spans
        self._rows = sum(span.count for span in spans)
        self._masks: dict[int, tuple[Tensor, MaskFunction]] = {}
        self._plans: dict[tuple[int, int, int], AttentionPlan] = {}

    def mask(self, function: MaskFunction, device: torch.device) -> Tensor:
        """A stand-in for a mask; attention calls that are given it look back as ``function`` says."""
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
        """q: [1, heads, T, key_dim]; k, v: [1, kv_heads, T, d] -> [1, T, heads, value_dim]; T: all rows."""
        call = self._next(k, v)
        rows, heads, n = q.shape[2], q.shape[1], self._rows
        if rows != len(self.positions) or k.shape[2] != rows:
            raise NotBridgedError(f"attention of {rows} rows over {k.shape[2]} in a call of {len(self.positions)}")
        if self._cache is None or self._layout is None:
            return q.new_zeros(1, rows, heads, v.shape[-1])
        if heads % k.shape[1]:
            raise NotBridgedError(f"{heads} query heads do not share {k.shape[1]} key heads evenly")
        own, first = self._layout.calls[call], 0
        k_rows, v_rows = (x[0].transpose(0, 1) for x in (k, v))
        for span in self._spans:
            part = slice(first, first + span.count)
            self._layout.write(self._cache, call, span.slot, span.start, k_rows[part], v_rows[part])
            first += span.count
        scale = own.key_dim**-0.5 if scale is None else float(scale)
        queries = F.pad(q[0, :, :n].transpose(0, 1), (0, own.dim - own.key_dim)).contiguous()
        found = attend(
            queries,
            LayoutRows(self._cache, self._layout),
            call,
            self._plan(mask, heads // own.kv_heads, own.kv_heads, q),
            scale,
            cap,
            sinks,
        )
        found = found.view(n, heads, own.dim)[..., : own.value_dim]
        return F.pad(found, (0, 0, 0, 0, 0, rows - n))[None]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """For attention that is the model's own: the rows that this one row sees, itself last, as [1, kv_heads, n, d].

        Always a copy of one layout, so that a kernel cannot choose another way by how the cache happens to lie.
        """
        call = self._next(k, v)
        if len(self.positions) != 1 or k.shape[2] != 1:
            raise NotBridgedError(f"{k.shape[2]} keys at once, where rows are run one by one")
        if self._cache is None or self._layout is None:
            return k, v
        (span,), own = self._spans, self._layout.calls[call]
        self._layout.write(self._cache, call, span.slot, span.start, k[0].transpose(0, 1), v[0].transpose(0, 1))
        keys, values = self._layout.read(self._cache, call, span.slot, span.start + 1)
        seen = _seen(span)
        if seen is not None:
            order = torch.tensor(seen, device=k.device)
            keys, values = keys.index_select(0, order), values.index_select(0, order)
        keys, values = keys[..., : own.key_dim], values[..., : own.value_dim]
        return _copy(keys), _copy(values)

    def _next(self, k: Tensor, v: Tensor) -> int:
        call = len(self.found)
        self.found.append(heads_of(k, v) if self._layout is None else self._layout.heads(call, k, v))
        return call

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


def register() -> None:
    """Make our functions known to transformers, by ``NAME``; doing it again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError:  # transformers 4: experts are modules of their own
        return
    ALL_EXPERTS_FUNCTIONS.register(NAME, _experts)


def current() -> Call:
    """The call under way."""
    call = CURRENT.get()
    if call is None:
        raise NotBridgedError("a bridged model was called past the bridge")
    return call


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention."""
    given = {name: x for name, x in given.items() if x is not None}
    scale, cap = given.pop("scaling", None), given.pop("softcap", None)
    sinks = given.pop("s_aux", None)
    unknown = given.keys() - _WITHOUT_EFFECT
    if unknown or given.get("is_causal") is False or given.get("dropout"):
        raise NotBridgedError(f"attention is asked for with {', '.join(sorted(unknown)) or 'another kind of mask'}")
    if getattr(module, "is_cross_attention", False):
        raise NotBridgedError("attention is over an encoder")
    return current().attend(query, key, value, attention_mask, scale, cap, sinks), None


def _mask(*_: Any, mask_function: MaskFunction, use_vmap: bool = False, device: Any = "cpu", **__: Any) -> Tensor:
    """What transformers calls in place of making a mask: nothing of a mask's size is made."""
    if use_vmap:
        raise NotBridgedError("its mask is a function that cannot be asked for positions")
    return current().mask(mask_function, torch.device(device))


def _visible(function: MaskFunction, device: torch.device) -> Visible:
    zero = torch.zeros((), dtype=torch.int64, device=device)
    return lambda at, columns: function(zero, zero, at, columns).expand(len(at), columns.shape[1])


def _experts(module: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Each expert that is wanted sees all rows, whoever wants it: its products then have one shape.

    hidden: [n, d]; index, weights: [n, used]. Experts are added up in the order of their numbers, as ``eager`` does.
    """
    own = type(module).forward.__wrapped__
    if len(hidden) == 1:
        result: Tensor = own(module, hidden, index, weights)
        return result
    total = torch.zeros_like(hidden)
    for expert in index.unique().tolist():
        chosen = index == expert
        weight = torch.where(chosen, weights, 0).sum(-1, keepdim=True)
        alone = torch.full((len(hidden), 1), expert, dtype=index.dtype, device=index.device)
        out = own(module, hidden, alone, weight)
        total = total + torch.where(chosen.any(-1, keepdim=True), out, 0)
    return total


def _seen(span: Span) -> list[int] | None:
    """The cache rows that the span's only row sees; None: all, up to itself."""
    if span.mask is None:
        return None
    width = span.mask.shape[1]
    base = span.start + span.count - width
    return [*range(base), *(base + i for i, seen in enumerate(span.mask[-1].tolist()) if seen)]


def _copy(rows: Tensor) -> Tensor:
    """[n, heads, d] -> [1, heads, n, d] in memory of its own."""
    return rows.transpose(0, 1)[None].clone(memory_format=torch.contiguous_format)
