"""The model protocol of the engine: one forward pass over packed tokens."""

from __future__ import annotations

from typing import Any, Protocol

from outrider.cache.protocol import CacheSpec, KVCache
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.models.config import ModelConfig


class Model(Protocol):
    """A target or draft model. ``forward`` computes T tokens, and writes T rows of keys and values into ``cache``."""

    @property
    def config(self) -> ModelConfig: ...

    def new_cache(self, spec: CacheSpec) -> KVCache: ...

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput: ...


class HeadTarget(Model, Protocol):
    """A target with the parts that trained heads use: features, embedding, norm and LM head.

    Arrays are NumPy's for a native model, else tensors of torch.
    """

    @property
    def dtype(self) -> Any:
        """The type of activations, which heads compute in: a name for NumPy arrays, else a dtype of torch."""
        ...

    @property
    def device(self) -> Any:
        """``"cpu"``, or a device of torch."""
        ...

    @property
    def precision(self) -> str:
        """The type of most weights: ``bfloat16``, ``q4_1``."""
        ...

    def embed(self, token_ids: Any) -> Any:
        """Input embeddings of int64 [...]: float [..., d]."""
        ...

    def final_norm(self, x: Any) -> Any:
        """The last norm: from the last layer's output x, [n, d], the input of the LM head."""
        ...

    def compute_logits(self, hidden: Any) -> Any:
        """Logits [n, vocab] of hidden states [n, d] that have gone through ``final_norm``."""
        ...

    def lm_head_rows(self, token_ids: Any) -> Any:
        """Rows of the LM head for int64 [n], times the logits' scale: float [n, d]."""
        ...


class LoadedModel(HeadTarget, Protocol):
    """A model with its weights in memory."""

    @property
    def takes_adapters(self) -> bool:
        """Whether ``Span.adapter`` has an effect."""
        ...

    @property
    def implementation(self) -> str:
        """The implementation: ``native``, ``torch``, or that of transformers."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that the weights take."""
        ...

    @property
    def cache_dtype(self) -> Any:
        """The type of keys and values, as ``dtype``."""
        ...
