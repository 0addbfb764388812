"""A block drafter's selector: what a token's score gains by the token before it (docs/algorithms/dflash.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from outrider.drafters.trained.head_parts import linear
from outrider.heads.dflash import BlockHead
from outrider.models.base import HeadTarget


def make_selector(head: BlockHead, target: HeadTarget) -> Callable[[Sequence[int]], Tensor] | None:
    """From target ids [n] to what follows gains behind each of them, [n, scored]; None: the head has no selector.

    A token that the head does not score changes nothing.
    """
    if head.before is None or head.after is None:
        return None
    ids = torch.arange(head.config.scored) if head.draft_ids is None else head.draft_ids.cpu()
    row = torch.full((target.config.vocab_size,), len(ids))
    row[ids] = torch.arange(len(ids))
    before = torch.cat([head.before.detach(), torch.zeros_like(head.before[:1])]).to(target.device, target.dtype)
    after = linear(head.after.detach(), None, target)

    def selector(tokens: Sequence[int]) -> Tensor:
        return after(before[row[list(tokens)].to(before.device)])

    return selector
