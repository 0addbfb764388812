"""The decoder layers of EAGLE and of block drafters in torch operations, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outrider.cache import CacheSpec
from outrider.models.base import HeadTarget
from outrider.models.batch import Span
from outrider_torch.drafters.eagle_attention import attention
from outrider_torch.drafters.head_parts import Scores, own_cache, packed
from outrider_torch.heads.eagle import EagleLayer
from outrider_torch.kernels.native_tensors import as_tensors


class TorchEagle:
    """A ``HeadRunner`` in torch operations."""

    def __init__(self, head: EagleLayer, target: HeadTarget, cache: CacheSpec) -> None:
        self._target, self._head = target, packed(head, target)
        self._scores = Scores(self._head, target)
        self.vocabulary = self._scores.vocabulary
        self.cache = own_cache(cache, head.config, target)

    @torch.inference_mode()
    def fuse(self, features: Any) -> Tensor:
        """See ``HeadRunner``."""
        features = as_tensors(features)
        if not self._head.config.feature_layers:
            features = self._target.final_norm(features)
        return self._head.fuse(features)

    @torch.inference_mode()
    def run(
        self, features: Tensor, tokens: Sequence[int], positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int], added: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """See ``HeadRunner``."""
        embeddings = self._target.embed(torch.tensor(tokens))
        if added is not None:
            embeddings = embeddings + added
        at = torch.tensor(positions, device=self._target.device)
        out: Tensor = self._head(embeddings, features, at, attention(self.cache, spans, self._head.config.window))
        return out, self._scores(self._head.scorable(out[list(logit_rows)]))
