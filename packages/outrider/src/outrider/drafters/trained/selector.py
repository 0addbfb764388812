"""A block drafter's selector: what a token's score gains by the token before it (docs/algorithms/dflash.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from outrider.drafters.heads import HeadWeights
from outrider.drafters.trained.heads import head_format
from outrider.models.native_llama import NativeLlamaModel
from outrider.models.native_passes import norm_rows
from outrider.native.weights import pack_array
from outrider.verify.arrays import Floats

__all__ = ["NativeSelector", "Selector"]


class Selector(Protocol):
    """Arrays are of the target's kind."""

    def gates(self, out: Any, /) -> Any:
        """How rows weigh the codebooks, from their outputs: [n, d] -> [n, rank]."""
        ...

    def __call__(self, tokens: Sequence[int], by: Any, /) -> Any:
        """What scores behind target ids [n] gain, [n, scored]. ``by``: [n, rank], gates of the rows that guess."""
        ...


class NativeSelector:
    """The codebooks of a head, packed. A token that the head does not score changes nothing."""

    def __init__(self, head: HeadWeights, target: NativeLlamaModel) -> None:
        """``head`` has a selector."""
        ids = np.arange(head.config.scored) if head.draft_ids is None else head.draft_ids
        self._row = np.full(target.config.vocab_size, len(ids))  # of each target id; behind all: not scored
        self._row[ids] = np.arange(len(ids))
        self._before = np.concatenate([head["before"], np.zeros_like(head["before"][:1])])
        self._after = pack_array(head["after"], head_format(target), context=target.context)
        self._gate = pack_array(head["gate"], "float32", context=target.context)
        self._context = target.context
        self._ones, self._eps = np.ones(head.config.hidden_size, np.float32), head.config.rms_norm_eps

    def gates(self, out: Floats) -> Floats:
        """See ``Selector``."""
        normed = norm_rows(self._context, out, self._ones.ctypes.data, self._eps)
        return 1 + self._gate(normed)

    def __call__(self, tokens: Sequence[int], by: Floats) -> Floats:
        """See ``Selector``."""
        return self._after(self._before[self._row[list(tokens)]] * by)
