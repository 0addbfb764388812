"""What layers of Gemma 4 do otherwise: heads by kind of layer, shared keys and values, embeddings of each layer."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gemma4"]


@dataclass(frozen=True, kw_only=True)
class Gemma4:
    """Differences that Gemma 4 alone has. Values are normed too, without a weight; layers end with a factor."""

    full_head_dim: int  # of a head in layers without a window
    full_kv_heads: int
    values_are_keys: bool = False  # in layers without a window
    reads: tuple[int | None, ...]
    """For each layer, the layer of the cache whose keys and values it reads; None: it has its own."""
    sharing_size: int  # intermediate size of layers without keys and values of their own
    layer_inputs: int = 0  # numbers that a token's embedding has for each layer; 0: there is none
    layer_vocab: int = 0  # tokens that have such an embedding
