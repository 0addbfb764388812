"""A block drafter's selector: additions to a token's score by the token before it (docs/algorithms/dflash.md)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.models.base import HeadTarget
from outrider_torch.drafters.head_parts import linear
from outrider_torch.heads.dflash import BlockHead, gates


class TorchSelector:
    """A ``Selector``: the codebooks of a head, packed. A token that the head does not score changes nothing."""

    def __init__(self, head: BlockHead, target: HeadTarget) -> None:
        """``head``: must have a selector."""
        assert head.before is not None
        assert head.after is not None
        assert head.gate is not None
        ids = torch.arange(head.config.scored) if head.draft_ids is None else head.draft_ids.cpu()
        self._row = torch.full((target.config.vocab_size,), len(ids))  # of each target id; behind all: not scored
        self._row[ids] = torch.arange(len(ids))
        codes = torch.cat([head.before.detach(), torch.zeros_like(head.before[:1])])
        self._before = codes.to(device=target.device, dtype=target.dtype)
        self._after = linear(head.after.detach(), None, target)
        self._gate = head.gate.detach().to(device=target.device, dtype=target.dtype)
        self._eps = head.config.rms_norm_eps

    def gates(self, out: Tensor) -> Tensor:
        """See ``Selector``."""
        return gates(out, self._gate, self._eps)

    def __call__(self, tokens: Sequence[int], by: Tensor) -> Tensor:
        """See ``Selector``."""
        return self._after(self._before[self._row[list(tokens)].to(by.device)] * by)
