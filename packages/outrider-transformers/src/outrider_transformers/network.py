"""Calls of a transformers model: names of its arguments, its caches, its logits."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outrider_transformers.calls import CURRENT, Call, current
from outrider_transformers.errors import NotBridgedError

_STATES = ("cache", "past_key_values", "cache_params", "state")
"""Names of the state argument of models: ``cache`` since transformers 5.24."""
_NO_CACHE_OF_OURS = ("rwkv", "xlstm")
"""Model types that create and return their own state."""


@dataclass(frozen=True)
class NetworkOutput:
    logits: Tensor  # [rows, vocab]; the last row's only, if logits were not requested
    hidden: Tensor | None  # [rows, d], the LM head's input
    state: Any  # argument of the next rows' call


class Network:
    """A ``PreTrainedModel`` with an LM head. Its configuration names its attention function."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.config: Any = module.config
        self.text_config: Any = _text_config(module.config)
        names = inspect.signature(module.forward).parameters
        self._keyword = next((name for name in _STATES if name in names), None)
        if self._keyword is None:
            raise NotBridgedError("it keeps nothing from one token to the next: a text is run as a whole each time")
        self.tells_positions = False
        """Whether calls of one text pass positions; else the model counts them from its state."""
        self._takes_positions = "position_ids" in names
        self._cuts_logits = "logits_to_keep" in names
        self._live_cache = _make_live_cache(_cache_class(module))
        self._hidden: Tensor | None = None
        head = getattr(module, "get_output_embeddings", lambda: None)()
        if isinstance(head, nn.Module):
            head.register_forward_pre_hook(self._note_hidden)

    def _note_hidden(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._hidden = inputs[0] if inputs else None

    def new_state(self, own_attention: bool = False) -> Any:
        """The initial state of a text. ``own_attention``: the model's attention reads keys and values through it."""
        if self.text_config.model_type in _NO_CACHE_OF_OURS:
            return None
        return self._live_cache(self.text_config, own_attention)

    def run(self, call: Call, tokens: Sequence[int], state: Any, *, logits: bool = True) -> NetworkOutput:
        """Call the model with one row per token, at the call's positions."""
        device = next(self.module.parameters()).device
        given: dict[str, Any] = {"input_ids": torch.tensor([tokens], device=device), "use_cache": True}
        given[str(self._keyword)] = state
        if self._takes_positions and (self.tells_positions or not call.is_one_text):
            given["position_ids"] = torch.tensor([call.positions], device=device)
        if self._cuts_logits and not logits:
            given["logits_to_keep"] = 1
        self._hidden = None
        token = CURRENT.set(call)
        try:
            out = self.module(**given)
        finally:
            CURRENT.reset(token)
        hidden, self._hidden = self._hidden, None
        if hidden is not None and hidden.dim() == 3:
            hidden = hidden[0]
        return NetworkOutput(out.logits[0], hidden, getattr(out, str(self._keyword), None) if state is None else state)

    def whole(self, tokens: Sequence[int]) -> Tensor:
        """Logits [n, vocab] of transformers alone: one pass, without our cache."""
        device = next(self.module.parameters()).device
        with self.attention("eager"):
            logits: Tensor = self.module(input_ids=torch.tensor([list(tokens)], device=device), use_cache=False).logits
        return logits[0]

    @contextmanager
    def attention(self, name: str) -> Iterator[None]:
        """Context in which all parts use the attention and experts called ``name``: ``NAME`` or ``eager``."""
        before = [(c, c._attn_implementation, getattr(c, "_experts_implementation", None)) for c in self._configs()]
        try:
            for config, _, _ in before:
                _set(config, name, name)
            yield
        finally:
            for config, attention, experts in before:
                _set(config, attention, experts)

    def use(self, attention: str, experts: str) -> None:
        """Set the names of the attention and experts functions."""
        for config in self._configs():
            _set(config, attention, experts)

    def _configs(self) -> list[Any]:
        """The configurations of all parts of the model."""
        held = [self.config, self.text_config]
        held += [module.config for module in self.module.modules() if hasattr(module, "config")]
        return list({id(c): c for c in held if hasattr(c, "_attn_implementation")}.values())


def _set(config: Any, attention: Any, experts: Any) -> None:
    config._attn_implementation_internal = attention
    if hasattr(config, "_experts_implementation_internal"):
        config._experts_implementation_internal = experts


def _text_config(config: Any) -> Any:
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def copied(state: Any) -> Any:
    """A state that a later call cannot change."""
    return copy.deepcopy(state)


def changes(before: Any, after: Any) -> bool:
    """Whether a state depends on the tokens between; keys and values are not part of it."""
    old, new = list(_tensors(before, set())), list(_tensors(after, set()))
    return len(old) != len(new) or any(
        a.shape != b.shape or not torch.equal(a, b) for a, b in zip(old, new, strict=True)
    )


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, dict):
            inner: Any = value.values()
        elif isinstance(value, (list, tuple)):
            inner = value
        else:
            inner = vars(value).values() if hasattr(value, "__dict__") and _holds_states(value) else ()
        for each in inner:
            yield from _tensors(each, seen)


def _holds_states(value: Any) -> bool:
    """Whether ``value`` contains states. Configurations may contain tensors, but no states."""
    return "Cache" in type(value).__name__ or "Layer" in type(value).__name__


def _cache_class(module: nn.Module) -> Any:
    """The cache class of a model: its own module's, if it defines one."""
    from transformers.cache_utils import DynamicCache

    own = [
        found
        for found in vars(sys.modules[type(module).__module__]).values()
        if isinstance(found, type) and issubclass(found, DynamicCache) and found.__module__ == type(module).__module__
    ]
    return own[0] if own else DynamicCache


def _make_live_cache(base: Any) -> Any:
    class LiveCache(base):  # type: ignore[misc]
        """States of recurrent layers; keys and values go to the current call."""

        def __init__(self, config: Any, own_attention: bool) -> None:
            takes_config = "config" in inspect.signature(base.__init__).parameters
            super().__init__(**{"config": config} if takes_config else {})
            self.own_attention = own_attention

        def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            if not self.own_attention:
                return key_states, value_states
            return current().extend(key_states, value_states)

        def get_seq_length(self, *_: Any, **__: Any) -> int:
            return current().seen

        def get_mask_sizes(self, query_length: Any, *_: Any, **__: Any) -> tuple[int, int]:
            return current().seen + int(query_length), 0

        def get_query_offset(self, *_: Any, **__: Any) -> int:
            return current().seen

    return LiveCache
