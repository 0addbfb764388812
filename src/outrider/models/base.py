"""What the engine knows of a model: its dimensions, and one run over packed tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from outrider.cache.protocol import CacheSpec, KVCache


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


@dataclass(frozen=True)
class Span:
    """The tokens one sequence brings to a run.

    cache slot:   [ kept rows 0 .. start-1 | new rows start .. start+count-1 ]
    positions:      0 .. start-1             start + depth of each new row
    """

    slot: int
    start: int  # cache rows kept before this run
    count: int  # new rows, packed next to each other in the batch
    mask: Tensor | None = None
    """bool [n, t]: which of the sequence's last t rows each of its last n rows sees, ``n <= count``, ``n <= t``.

    These see all rows before the t, and new rows before the n are causal, as all are without a mask."""


@dataclass(frozen=True)
class ForwardBatch:
    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    spans: tuple[Span, ...]  # in packing order; their counts sum to T
    logit_rows: Tensor | None  # int64 [R], rows that need the LM head; None: all
    layers: int | None = None  # run only so many of the first layers, then final norm and LM head; None: all
    features: tuple[int, ...] = ()
    """Layer counts, ascending: the residual stream after so many layers, before any norm, is wanted of every token."""
    inputs: Tensor | None = None  # float [T, d] in place of the tokens' embeddings


@dataclass(frozen=True)
class ForwardOutput:
    logits: Tensor  # float [R, vocab]
    hidden: Tensor  # float [R, d], after the final norm
    features: Tensor | None = None  # float [T, len(features) * d], those asked for side by side, for all T tokens


class Model(Protocol):
    """A target or draft model. ``forward`` writes T rows of keys and values into ``cache``."""

    @property
    def config(self) -> ModelConfig: ...

    def new_cache(self, spec: CacheSpec) -> KVCache: ...

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput: ...


class HeadTarget(Model, Protocol):
    """A target that trained heads can be put on: they read its features and use its embedding and LM head."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """Input embeddings of int64 [...]: float [..., d]."""
        ...

    def final_norm(self, x: Tensor) -> Tensor:
        """What the LM head reads, from the last layer's output x: [n, d]."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] of hidden states [n, d] that have gone through ``final_norm``."""
        ...

    def head_rows(self, token_ids: Tensor) -> Tensor:
        """Rows of the LM head for int64 [n]: float [n, d]."""
        ...
