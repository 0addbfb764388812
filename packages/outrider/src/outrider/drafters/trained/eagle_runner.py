"""A head's decoder layers as its drafter runs them: in the native library where its target is, else in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from outrider.cache import CacheSpec, KVCache
from outrider.drafters.heads.eagle import EagleLayer
from outrider.drafters.trained.eagle_attention import attention
from outrider.drafters.trained.head_parts import Scores, own_cache, packed
from outrider.drafters.trained.native_eagle import NativeEagle
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.models.base import HeadTarget
from outrider.models.batch import Span
from outrider_torch.drafters.torch_target import TorchTarget, native_model, torch_target


class EagleRunner(Protocol):
    """Runs the layers over rows of any number of requests, and keeps their keys and values."""

    cache: KVCache
    vocabulary: DraftVocabulary | None  # which tokens logits are of; None: all of the target's

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features [n, layers * d], as it hands them out, as ``run`` takes them: [n, d]."""
        ...

    def run(
        self, features: Tensor, tokens: Sequence[int], positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int], added: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """One forward pass, for whose rows ``cache`` has made room.

        Args:
            features: float [T, d], ``fuse`` of the target's features, or earlier outputs.
            tokens: of each row, the one that follows its feature.
            positions: of each row's feature.
            spans: in the order of the rows.
            logit_rows: which rows are scored.
            added: float [T, d], to the tokens' embeddings.

        Returns:
            outputs a_t [T, d], and logits [len(logit_rows), vocab or draft vocab].
        """
        ...


def make_runner(head: EagleLayer, target: HeadTarget, cache: CacheSpec) -> EagleRunner:
    """``head`` becomes the runner's own: it can only draft now. ``cache``: what the layers' own is to be like."""
    c, target = head.config, torch_target(target)
    if (
        isinstance(target, TorchTarget)
        and native_model(target) is not None
        and c.head_dim <= 256
        and c.head_dim % 2 == 0
    ):
        return NativeEagle(head, target, cache)
    return TorchEagle(head, target, cache)


class TorchEagle:
    """In torch operations, on any device; an ``EagleRunner``."""

    def __init__(self, head: EagleLayer, target: HeadTarget, cache: CacheSpec) -> None:
        self._target, self._head = target, packed(head, target)
        self._scores = Scores(self._head, target)
        self.vocabulary = self._scores.vocabulary
        self.cache = own_cache(cache, head.config, target)

    def fuse(self, features: Tensor) -> Tensor:
        """See ``EagleRunner``."""
        if not self._head.config.feature_layers:
            features = self._target.final_norm(features)
        return self._head.fuse(features)

    def run(
        self, features: Tensor, tokens: Sequence[int], positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int], added: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """See ``EagleRunner``."""
        embeddings = self._target.embed(torch.tensor(tokens))
        if added is not None:
            embeddings = embeddings + added
        at = torch.tensor(positions, device=self._target.device)
        out: Tensor = self._head(embeddings, features, at, attention(self.cache, spans, self._head.config.window))
        return out, self._scores(self._head.scorable(out[list(logit_rows)]))
