"""One call of a foreign model: replacements of its attention, masks and experts, over rows of our cache.

transformers looks up its attention function by a name in the configuration, and passes it queries, keys and values
that are projected and rotated. The functions registered here find the current call in ``CURRENT``, write its keys
and values to the cache, and attend as ``kernels.attention`` does: in calls whose shape changes no bit of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from outrider_transformers.errors import NotBridgedError
from outrider_transformers.layout import Heads, Layout, heads_of

NAME = "outrider"
"""The name of our functions in transformers' registries."""

CURRENT: ContextVar[Call | None] = ContextVar("bridge_call", default=None)

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

_WITHOUT_EFFECT = frozenset(
    (
        *("dropout", "sliding_window", "is_causal", "attention_mask", "layer_idx", "deterministic"),
        *(
            "position_ids",
            "position_embeddings",
            "cache_position",
            "cache",
            "past_key_values",
            "cache_params",
            "use_cache",
        ),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep"),
    )
)
"""Arguments without effect here: the mask contains windows, and queries and keys contain positions."""


class Call:
    """Rows in one call of the model; subclasses are ``PackedCall`` and ``TextCall``.

    Attention calls are counted, not layers: a layer that runs twice has two sets of keys and values.
    """

    is_one_text = False

    def __init__(self, layout: Layout | None, positions: Sequence[int], seen: int) -> None:
        """``layout``: None only records the heads, in ``found``.

        Args:
            positions: of all rows.
            seen: the number of earlier tokens that the model is told.
        """
        self.positions, self.seen = positions, seen
        self.found: list[Heads] = []
        self._layout = layout

    def mask(self, function: MaskFunction, device: torch.device) -> Tensor:
        """A placeholder for the mask of ``function``, to be passed to ``attend``."""
        raise NotBridgedError("a mask of ours is asked for")

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
        """Our attention of q: [1, heads, T, key_dim]; k, v: [1, kv_heads, T, d] -> [1, T, heads, value_dim]."""
        raise NotBridgedError("attention of ours is asked for")

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [1, kv_heads, n, d] for the model's own attention."""
        return k, v

    def _next(self, k: Tensor, v: Tensor) -> int:
        """The index of this attention call."""
        call = len(self.found)
        self.found.append(heads_of(k, v) if self._layout is None else self._layout.heads(call, k, v))
        return call


def register() -> None:
    """Register our functions with transformers as ``NAME``; idempotent."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError:  # transformers 4: experts are modules of their own
        return
    ALL_EXPERTS_FUNCTIONS.register(NAME, _experts)


def current() -> Call:
    """The current call."""
    call = CURRENT.get()
    if call is None:
        raise NotBridgedError("a bridged model was called past the bridge")
    return call


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
) -> tuple[Tensor, None]:
    """Attention function that transformers calls instead of its own."""
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
    """Mask function that transformers calls instead of its own: allocates no mask."""
    if use_vmap:
        raise NotBridgedError("its mask is a function that cannot be asked for positions")
    return current().mask(mask_function, torch.device(device))


def _experts(module: Any, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Every chosen expert computes all rows, so that its products have one shape.

    hidden: [n, d]; index, weights: [n, used]. Experts are added in the order of their indices, as ``eager`` does.
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
