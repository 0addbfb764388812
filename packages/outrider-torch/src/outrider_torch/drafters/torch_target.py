"""A target for trained heads: gives torch tensors, independently of the target's backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outrider.cache import CacheSpec, KVCache
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.models.base import HeadTarget
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.models.config import ModelConfig
from outrider.models.native_llama import NativeLlamaModel
from outrider.verify.arrays import Floats
from outrider_torch.heads.checkpoint import load_head
from outrider_torch.kernels.native_tensors import TensorWeight, as_tensors
from outrider_torch.kernels.torch_processor import use_chosen_threads


def torch_dtype_of(dtype: Any) -> torch.dtype:
    """A torch dtype, from itself or from its name."""
    found = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert isinstance(found, torch.dtype)
    return found


class TorchTarget:
    """A ``HeadTarget`` that returns tensors sharing the memory of the target's arrays."""

    def __init__(self, model: HeadTarget) -> None:
        self.model = model
        self.config: ModelConfig = model.config
        self.dtype = torch_dtype_of(model.dtype)
        self.device = torch.device(model.device)
        self.precision = model.precision
        self.cache_dtype = getattr(model, "cache_dtype", model.dtype)
        self.context = model.context if isinstance(model, NativeLlamaModel) else None
        """The native library's context, shared with the target's heads; None for other targets."""
        self.packed_embedding = model.packed_embedding if isinstance(model, NativeLlamaModel) else None
        use_chosen_threads()

    @property
    def head(self) -> TensorWeight:
        """The LM head of a model in the native library."""
        assert isinstance(self.model, NativeLlamaModel)
        return TensorWeight(self.model.head)

    def new_cache(self, spec: CacheSpec) -> KVCache:
        return self.model.new_cache(spec)

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        given = batch if batch.inputs is None else replace(batch, inputs=batch.inputs.numpy())
        out = self.model.forward(given, cache)
        features = None if out.features is None else as_tensors(out.features)
        return ForwardOutput(as_tensors(out.logits), as_tensors(out.hidden), features)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Input embeddings of int64 [...]: float32 [..., d]."""
        return torch.from_numpy(self.model.embed(token_ids.cpu().numpy()))

    def final_norm(self, x: Tensor) -> Tensor:
        """The final norm of the last layer's output x: [n, d]."""
        return torch.from_numpy(self.model.final_norm(x.detach().float().numpy()))

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] of hidden states [n, d]."""
        return torch.from_numpy(self.model.compute_logits(hidden.detach().float().numpy()))

    def lm_head_rows(self, token_ids: Tensor) -> Tensor:
        """Rows of the LM head, [n, d], for int64 [n]."""
        return torch.from_numpy(self.model.lm_head_rows(token_ids.cpu().numpy()))


def torch_target(target: HeadTarget) -> HeadTarget:
    """``target`` itself if torch computes it, else a ``TorchTarget`` around it."""
    return TorchTarget(target) if isinstance(target.dtype, str) else target


def native_model(target: HeadTarget) -> NativeLlamaModel | None:
    """The native library's model behind a target; None for torch models and foreign ones."""
    model = target.model if isinstance(target, TorchTarget) else target
    return model if isinstance(model, NativeLlamaModel) else None


def load_head_for(folder: Path, target: HeadTarget, known: tuple[TargetFingerprint, Floats]) -> nn.Module:
    """``load_head`` in a target's dtype. ``known``: the target's fingerprint, and rows of its embedding."""
    return load_head(folder, torch_dtype_of(target.dtype), (known[0], torch.from_numpy(known[1])))[0]
