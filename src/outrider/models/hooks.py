"""Forward hooks: a view of a model that reports what goes into each linear layer and what comes out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from outrider.kernels.linear.linear import Linear
from outrider.models.llama import LlamaModel

Hook = Callable[[int, str, Tensor], None]
"""Called with layer (``num_layers`` for the head), operation and its result [rows, width], in order of computing."""

# A linear layer's input is the result of the operation before it.
_PROJECTIONS = (
    ("qkv", "norm before attention", "projection to queries, keys and values"),
    ("out", "rotary embedding and attention", "projection of attention"),
    ("gate_up", "sum and norm before the feed-forward part", "projections to gate and up"),
    ("down", "SiLU and product", "projection down"),
)


@dataclass
class _HookedLinear:
    """A linear layer that calls a hook with its input and with its output."""

    linear: Linear
    layer: int
    before: str
    after: str
    hook: Hook

    def __post_init__(self) -> None:
        self.out_features, self.in_features = self.linear.out_features, self.linear.in_features

    def __call__(self, x: Tensor) -> Tensor:
        self.hook(self.layer, self.before, x)
        y = self.linear(x)
        self.hook(self.layer, self.after, y)
        return y


def with_hooks(model: LlamaModel, hook: Hook) -> LlamaModel:
    """A view of ``model``, sharing its weights, whose linear layers call ``hook``."""
    view = copy.copy(model)
    layers = []
    for i, layer in enumerate(model._layers):
        hooks = {
            name: _HookedLinear(getattr(layer, name), i, before, after, hook) for name, before, after in _PROJECTIONS
        }
        layers.append(replace(layer, **hooks))  # type: ignore[arg-type]  # fields that hold linear layers
    view._layers = layers
    view._fixed = None  # replayed CUDA graphs would pass the hooks by
    view._lm_head = _HookedLinear(model._lm_head, len(model._layers), "last norm", "head", hook)
    return view
