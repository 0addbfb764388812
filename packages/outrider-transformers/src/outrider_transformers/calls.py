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

from outrider_transformers.errors import NotBridgedError
from outrider_transformers.layout import Heads, Layout, heads_of

NAME = "outrider"
"""Of our functions among those of transformers."""

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
"""Arguments that change nothing here: windows come with the mask, positions are in queries and keys already."""


class Call:
    """Rows on their way through the model, all in one call of it; ``PackedCall`` and ``TextCall`` do the work.

    Attention calls are counted, not layers: a layer that a model runs twice has keys and values twice.
    """

    is_one_text = False

    def __init__(self, layout: Layout | None, positions: Sequence[int], seen: int) -> None:
        """Without a layout heads are only noted, in ``found``.

        Args:
            positions: of all rows.
            seen: what the model is told of the tokens before.
        """
        self.positions, self.seen = positions, seen
        self.found: list[Heads] = []
        self._layout = layout

    def mask(self, function: MaskFunction, device: torch.device) -> Tensor:
        """A stand-in for a mask that ``function`` describes, for ``attend``."""
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
        """Attention in our words: q: [1, heads, T, key_dim]; k, v: [1, kv_heads, T, d] -> [1, T, heads, value_dim]."""
        raise NotBridgedError("attention of ours is asked for")

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Attention in the model's words: what is to be attended over, [1, kv_heads, n, d]."""
        return k, v

    def _next(self, k: Tensor, v: Tensor) -> int:
        """The number of this attention call."""
        call = len(self.found)
        self.found.append(heads_of(k, v) if self._layout is None else self._layout.heads(call, k, v))
        return call


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
