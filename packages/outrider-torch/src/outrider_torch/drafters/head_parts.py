"""Shared parts of drafters with trained heads: layers packed for the processor, and scores over all tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.trained.heads import head_format
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.models.base import HeadTarget
from outrider.native.library import library
from outrider_torch.drafters.torch_target import TorchTarget
from outrider_torch.heads.blockwise import BlockwiseHeads
from outrider_torch.heads.medusa import MedusaHeads
from outrider_torch.heads.vocabulary import ScoringHead
from outrider_torch.kernels.linear import TorchLinear
from outrider_torch.kernels.native_tensors import pack_tensor

AnyModule = TypeVar("AnyModule", bound=nn.Module)


def draft_vocabulary(head: ScoringHead, target: HeadTarget) -> DraftVocabulary | None:
    """The target's tokens that ``head`` scores; None: all."""
    if head.draft_ids is None:
        return None
    return DraftVocabulary(head.draft_ids.cpu().numpy(), target.config.vocab_size)


def linear(weight: Tensor, bias: Tensor | None, target: HeadTarget, kind: str = "") -> Callable[[Tensor], Tensor]:
    """``x W' + b`` on the target's kernels. ``kind``: of the head."""
    if target.device.type == "cpu" and library() is not None:
        context = target.context if isinstance(target, TorchTarget) else None
        return pack_tensor(weight.float(), head_format(target, kind), bias=bias, context=context)
    return TorchLinear(weight, bias)


def own_cache(spec: CacheSpec, config: HeadConfig, target: HeadTarget) -> KVCache:
    """A cache in torch for keys and values of a head's layers. ``spec``: its specification."""
    return make_cache(
        spec,
        layers=config.num_layers,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=target.dtype,
        device=target.device,
    )


class _Packed(nn.Module):
    """``nn.Linear`` on the target's kernels."""

    def __init__(self, layer: nn.Linear, target: HeadTarget, kind: str) -> None:
        super().__init__()
        self._linear = linear(layer.weight.detach(), None if layer.bias is None else layer.bias.detach(), target, kind)

    def forward(self, x: Tensor) -> Tensor:
        """x: float [..., in] -> [..., out]."""
        return self._linear(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


def packed(head: AnyModule, target: HeadTarget) -> AnyModule:
    """``head`` in the target's dtype and on its device, its linear layers packed in place: no longer trainable."""
    head.to(device=target.device, dtype=target.dtype)
    kind = head.config.kind if isinstance(head, ScoringHead) else ""
    for module in list(head.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, _Packed(child, target, kind))
    return head


def packed_states(heads: MedusaHeads | BlockwiseHeads, target: HeadTarget) -> Callable[[Tensor], Tensor]:
    """``heads`` in few operations: float [n, d] after the target's final norm -> [heads, n, d], for the LM head."""
    heads.to(device=target.device, dtype=target.dtype)
    count = heads.config.heads
    if isinstance(heads, MedusaHeads):
        blocks = [block for block in heads.blocks if isinstance(block, nn.Linear)]
        weight = torch.cat([block.weight.detach() for block in blocks])
        every = linear(weight, torch.cat([block.bias.detach() for block in blocks]), target)
        return lambda hidden: hidden + F.silu(every(hidden).unflatten(1, (count, -1))).transpose(0, 1)
    inner = linear(heads.inner.weight.detach(), heads.inner.bias.detach(), target)
    outer = [linear(weight.contiguous(), None, target) for weight in heads.outer.detach()]

    def states(hidden: Tensor) -> Tensor:
        read = F.relu(inner(hidden)).unflatten(1, (count, -1))  # [n, heads, d]
        return hidden + torch.stack([each(read[:, i]) for i, each in enumerate(outer)])

    return states


class Scores:
    """Computes a head's logits over all the target's tokens or over its draft ``vocabulary``."""

    def __init__(self, head: ScoringHead, target: HeadTarget) -> None:
        """``head``: packed or not. Without an LM head of its own, the target's rows are used."""
        ids = None if head.draft_ids is None else head.draft_ids.to(target.device)
        self.vocabulary = draft_vocabulary(head, target)
        self._linear: Callable[[Tensor], Tensor]
        if isinstance(head.lm_head, nn.Linear):
            self._linear = linear(head.lm_head.weight.detach(), None, target, head.config.kind)
        elif head.lm_head is not None:
            self._linear = head.lm_head
        else:
            self._linear = target.compute_logits if ids is None else linear(target.lm_head_rows(ids), None, target)

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden: [n, d], the LM head's input -> [n, vocab or draft vocab]."""
        return self._linear(hidden)
