"""What drafters with trained heads share: layers packed for the processor at hand, and scores over all tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from outrider.heads.vocabulary import Scored
from outrider.models.base import HeadTarget
from outrider.models.linear import make_linear

AnyModule = TypeVar("AnyModule", bound=nn.Module)
FAR = -1e4
"""The logit of tokens outside a draft vocabulary: never drawn unless the request's options rule out all others."""


class _Packed(nn.Module):
    """``nn.Linear`` on the kernels that the target runs on: half the time of ``F.linear`` at a row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._linear = make_linear(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """x: float [..., in] -> [..., out]."""
        return self._linear(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


def packed(head: AnyModule, target: HeadTarget) -> AnyModule:
    """``head`` in the target's dtype and on its device, its linear layers packed in place: it can only draft now."""
    head.to(device=target.device, dtype=target.dtype)
    for module in list(head.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, _Packed(child))
    return head


class Scores:
    """Logits over the target's vocabulary, whatever part of it a head scores.

    ::

        draft vocabulary   17   204   911        logits    1.5   0.2   3.0
        target's           0 ... 17 ... 204 ...  logits    FAR ... 1.5 ... 0.2 ...
    """

    def __init__(self, head: Scored, target: HeadTarget) -> None:
        """``head``: packed. Without an LM head of its own, the target's rows of its draft vocabulary are used."""
        self._vocab_size = target.config.vocab_size
        self._ids = None if head.draft_ids is None else head.draft_ids.to(target.device)
        self._linear: Callable[[Tensor], Tensor]
        if head.lm_head is not None:
            self._linear = head.lm_head
        elif self._ids is None:
            self._linear = target.head
        else:
            self._linear = make_linear(target.head_rows(self._ids), None)

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden: [n, d] as the LM head takes it -> float [n, vocab]."""
        logits: Tensor = self._linear(hidden)
        if self._ids is None:
            return logits
        everything = torch.full((len(logits), self._vocab_size), FAR, dtype=torch.float32, device=logits.device)
        return everything.index_copy_(1, self._ids, logits.float())
