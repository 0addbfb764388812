"""Kinds of a model's layers, and the number of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.models.config import ModelConfig

__all__ = ["LayerKind", "kind_of", "layer_kinds", "num_layer_weights", "num_weights"]


@dataclass(frozen=True)
class LayerKind:
    """Attention window, rotation and heads of a layer."""

    window: int | None
    chunked: bool
    rope: tuple[float, Mapping[str, Any]] | None
    head_dim: int


def layer_kinds(config: ModelConfig) -> list[LayerKind]:
    """The distinct kinds of a model's layers with attention, in the order of their first layers."""
    kinds: list[LayerKind] = []
    for layer in config.attention_layers:
        kind = _kind(config, layer)
        if kind not in kinds:
            kinds.append(kind)
    return kinds


def kind_of(config: ModelConfig, layer: int) -> int:
    """The place in ``layer_kinds`` of the kind of a layer with attention."""
    return layer_kinds(config).index(_kind(config, layer))


def _kind(config: ModelConfig, layer: int) -> LayerKind:
    window = config.window(layer)
    return LayerKind(
        window, config.chunked_windows and window is not None, config.rope(layer), config.head_dim_of(layer)
    )


def num_layer_weights(config: ModelConfig, *, used: bool = False) -> int:
    """The number of weights in the matrices of all layers; ``used``: in those that one token is multiplied with."""
    d, matrices = config.hidden_size, 3 if config.gated else 2
    total = 0
    for layer in range(config.num_layers):
        experts = config.experts if config.is_sparse(layer) else None
        dense = (experts is None or experts.beside) and config.has_mlp(layer)
        mlp = matrices * config.inner_of(layer) if dense else 0
        if experts is not None:
            mlp += experts.count + matrices * experts.size * (experts.used if used else experts.count)
            mlp += matrices * experts.shared_size
        inputs = 0 if config.gemma4 is None else 3 * config.gemma4.layer_inputs  # gate, output and projection
        total += (_mixer_weights(config, layer) if config.has_mixer(layer) else 0) + d * (mlp + inputs)
    return total


def _mixer_weights(config: ModelConfig, layer: int) -> int:
    """The number of weights in the matrices of a layer's attention or state."""
    recurrent, d = config.recurrent, config.hidden_size
    if recurrent is not None and config.is_recurrent(layer):
        return d * (sum(recurrent.projections.values()) + recurrent.values)
    if config.latent is not None:
        return config.latent.num_weights(d, config.num_heads)
    gates = config.num_heads if config.gated_attention else 0
    kv = 0 if layer not in config.cache_layers else 2 * config.kv_heads_of(layer)
    if kv and config.gemma4 is not None and config.gemma4.values_are_keys and config.window(layer) is None:
        kv //= 2
    return d * (2 * config.num_heads + kv + gates) * config.head_dim_of(layer)


def num_weights(config: ModelConfig) -> int:
    """The number of weights in all matrices, embedding and LM head included: the size in a model's name."""
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
    return num_layer_weights(config) + embeddings
