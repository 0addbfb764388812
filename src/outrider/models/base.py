"""What the engine asks of a model: one forward pass over packed tokens."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from outrider.cache.protocol import CacheSpec, KVCache
from outrider.kernels.batch import ForwardBatch, ForwardOutput
from outrider.models.config import ModelConfig


class Model(Protocol):
    """A target or draft model. ``forward`` writes T rows of keys and values into ``cache``."""

    @property
    def config(self) -> ModelConfig: ...

    def new_cache(self, spec: CacheSpec) -> KVCache: ...

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput: ...


class HeadTarget(Model, Protocol):
    """A target that trained heads can be put on: they read its features and use its embedding and LM head."""

    @property
    def dtype(self) -> torch.dtype:
        """Of activations: what heads compute in."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def precision(self) -> str:
        """How the weights are held: ``bfloat16``, ``q4_1``."""
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """Input embeddings of int64 [...]: float [..., d]."""
        ...

    def final_norm(self, x: Tensor) -> Tensor:
        """What the LM head reads, from the last layer's output x: [n, d]."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] of hidden states [n, d] that have gone through ``final_norm``."""
        ...

    def lm_head_rows(self, token_ids: Tensor) -> Tensor:
        """Rows of the LM head for int64 [n], times the logits' scale: float [n, d]."""
        ...


class LoadedModel(HeadTarget, Protocol):
    """A model whose weights are in memory."""

    @property
    def takes_adapters(self) -> bool:
        """Whether ``Span.adapter`` has an effect."""
        ...

    @property
    def implementation(self) -> str:
        """What computes it: ``native``, ``torch``, or how transformers' code does."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        ...

    @property
    def cache_dtype(self) -> torch.dtype:
        """Of keys and values."""
        ...
