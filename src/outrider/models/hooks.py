"""A model whose inner results can be read: what goes into each linear layer and what comes out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from outrider.kernels.linear.linear import Linear
from outrider.models.llama import LlamaModel

Record = Callable[[int, str, Tensor], None]
"""Called with layer (``num_layers`` for the head), operation and its result [rows, width], in order of computing."""

# A linear layer's input is the result of the operation before it.
_PROJECTIONS = (
    ("qkv", "norm before attention", "projection to queries, keys and values"),
    ("out", "rotary embedding and attention", "projection of attention"),
    ("gate_up", "sum and norm before the feed-forward part", "projections to gate and up"),
    ("down", "SiLU and product", "projection down"),
)


@dataclass
class _Tapped:
    """A linear layer that tells what it was given and what it made of it."""

    linear: Linear
    layer: int
    before: str
    after: str
    record: Record

    def __post_init__(self) -> None:
        self.out_features, self.in_features = self.linear.out_features, self.linear.in_features

    def __call__(self, x: Tensor) -> Tensor:
        self.record(self.layer, self.before, x)
        y = self.linear(x)
        self.record(self.layer, self.after, y)
        return y


def tapped(model: LlamaModel, record: Record) -> LlamaModel:
    """A view of ``model``, sharing its weights, whose runs are recorded."""
    view = copy.copy(model)
    layers = []
    for i, layer in enumerate(model._layers):
        taps = {name: _Tapped(getattr(layer, name), i, before, after, record) for name, before, after in _PROJECTIONS}
        layers.append(replace(layer, **taps))  # type: ignore[arg-type]  # fields that hold linear layers
    view._layers = layers
    view._fixed = None  # captured runs would pass the taps by
    view._head = _Tapped(model._head, len(model._layers), "last norm", "head", record)
    return view
