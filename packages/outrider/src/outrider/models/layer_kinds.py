"""Kinds of a model's layers, and the number of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.models.config import ModelConfig

__all__ = ["LayerKind", "kind_of", "layer_kinds", "num_layer_weights", "num_weights"]


@dataclass(frozen=True)
class LayerKind:
    """Attention window and rotation of a layer."""

    window: int | None
    rope: tuple[float, Mapping[str, Any]] | None


def layer_kinds(config: ModelConfig) -> list[LayerKind]:
    """The distinct kinds of a model's layers with attention, in the order of their first layers."""
    kinds: list[LayerKind] = []
    for layer in config.attention_layers:
        kind = LayerKind(config.window(layer), config.rope(layer))
        if kind not in kinds:
            kinds.append(kind)
    return kinds


def kind_of(config: ModelConfig, layer: int) -> int:
    """The place in ``layer_kinds`` of the kind of a layer with attention."""
    return layer_kinds(config).index(LayerKind(config.window(layer), config.rope(layer)))


def num_layer_weights(config: ModelConfig, *, used: bool = False) -> int:
    """The number of weights in the matrices of all layers; ``used``: in those that one token is multiplied with."""
    d, matrices = config.hidden_size, 3 if config.gated else 2
    total = 0
    for layer in range(config.num_layers):
        experts = config.experts if config.is_sparse(layer) else None
        if experts is None:
            mlp = matrices * config.intermediate_size
        else:
            mlp = experts.count + matrices * experts.size * (experts.used if used else experts.count)
            mlp += matrices * experts.shared_size
        total += _mixer_weights(config, layer) + d * mlp
    return total


def _mixer_weights(config: ModelConfig, layer: int) -> int:
    """The number of weights in the matrices of a layer's attention or state."""
    recurrent, d = config.recurrent, config.hidden_size
    if recurrent is not None and config.is_recurrent(layer):
        return d * (recurrent.channels + 2 * recurrent.values + 2 * recurrent.value_heads)
    if config.latent is not None:
        return config.latent.num_weights(d, config.num_heads)
    gates = config.num_heads if config.gated_attention else 0
    return d * (2 * (config.num_heads + config.num_kv_heads) + gates) * config.head_dim


def num_weights(config: ModelConfig) -> int:
    """The number of weights in all matrices, embedding and LM head included: the size in a model's name."""
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
    return num_layer_weights(config) + embeddings
