"""A model's own draft head (multi-token prediction) on torch: on GPUs, and on CPUs without the native library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache import CacheSpec, make_cache
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.trained.level_drafter import LevelDrafter
from outrider.drafters.trained.mtp_head import PROJECTION, MtpHead
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.models.batch import Span
from outrider.verify.draft import Draft
from outrider_torch.kernels.linear import TorchLinear
from outrider_torch.models.decoder import Decoder
from outrider_torch.models.llama import LlamaModel
from outrider_torch.models.stored import StoredTensors
from outrider_torch.models.weights import TorchWeights

__all__ = ["TorchMtp", "build_mtp"]


def build_mtp(context: DrafterContext) -> Drafter:
    """The source ``mtp`` for a target on torch."""
    head, target = context.heads["mtp"], context.require_target()[0]
    assert isinstance(target, LlamaModel)
    runner = TorchMtp(head, target, replace(context.cache, prefix_reuse=False))
    return TorchMtpDrafter(
        runner, (target.config.num_layers,), source="mtp", vocab_size=context.vocab_size, learned=head.acceptance
    )


class TorchMtpDrafter(LevelDrafter):
    """Scores the whole vocabulary."""

    @torch.inference_mode()
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return super().propose(requests, budgets)


class TorchMtp:
    """A ``HeadRunner`` of an ``MtpHead``, as ``NativeMtp``."""

    vocabulary: DraftVocabulary | None = None

    def __init__(self, head: MtpHead, target: LlamaModel, cache: CacheSpec) -> None:
        """``cache``: the specification of the layer's own cache."""
        self._target, c = target, head.config
        weights = TorchWeights(c, StoredTensors(head.tensors), dtype=target.dtype, device=target.device)
        with torch.inference_mode():
            self._decoder = Decoder(c, weights, dtype=target.dtype, device=target.device)
            self._fc = TorchLinear(weights.get(f"{PROJECTION}.weight").clone(), None)
            self._embedding_norm, self._feature_norm, self._output_norm = (
                weights.norm(f"model.{name}") for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
            )
        self.cache = make_cache(
            cache,
            layers=c.num_layers,
            kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            value_dim=c.value_dim,
            dtype=target.dtype,
            device=target.device,
        )

    @torch.inference_mode()
    def fuse(self, features: Any) -> Tensor:
        """See ``HeadRunner``."""
        return self._target.final_norm(features)

    @torch.inference_mode()
    def run(
        self, features: Tensor, tokens: Sequence[int], positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int], added: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """See ``HeadRunner``."""
        embeddings = self._target.embed(torch.tensor(tokens))
        if added is not None:
            embeddings = embeddings + added
        x = self._fc(torch.cat([self._embedding_norm(embeddings), self._feature_norm(features)], dim=1))
        rows, forward = self._decoder.over(spans, positions, self.cache)
        x, _ = self._decoder.through(F.pad(x, (0, 0, 0, rows - len(x))).contiguous(), forward)
        out = self._output_norm(x[: len(tokens)])
        return out, self._target.compute_logits(out[list(logit_rows)])
