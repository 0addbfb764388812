"""Dimensions and constants of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Dimensions and constants of a Llama-family model, whatever file format they came from."""

    family: str  # llama, mistral, qwen2, qwen3
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_seq_len: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)  # as in config.json; empty: none
    rope_interleaved: bool = False  # weights order each head's rotary pairs (2i, 2i+1) instead of (i, i + d/2)
    attention_bias: bool = False  # biases on q, k, v (Qwen2)
    qk_norm: bool = False  # RMS norm on each head of q and k (Qwen3)
    tie_embeddings: bool = False
    sliding_window: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
