"""A block drafter's selector: corrects a token's score given the token before it (docs/algorithms/dflash.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from outrider.drafters.heads.weights import HeadWeights
from outrider.drafters.trained.heads import head_format
from outrider.models.native_llama import NativeLlamaModel
from outrider.models.native_passes import norm_rows
from outrider.native.weights import pack_array
from outrider.verify.arrays import Floats


class Selector(Protocol):
    """Adds to a token's logit a term for the token before it. Arrays have the type of the target's arrays."""

    def gates(self, out: Any, /) -> Any:
        """The weights of the codebooks' columns, from rows' outputs: [n, d] -> [n, rank]."""
        ...

    def __call__(self, tokens: Sequence[int], by: Any, /) -> Any:
        """The logits to add after the target ids ``tokens`` [n]: [n, scored]. ``by``: gates [n, rank] of the rows."""
        ...


class NativeSelector:
    """A ``Selector`` with packed codebooks. It adds zero after a token that the head does not score."""

    def __init__(self, head: HeadWeights, target: NativeLlamaModel) -> None:
        """``head`` must have a selector."""
        ids = np.arange(head.config.scored) if head.draft_ids is None else head.draft_ids
        self._row = np.full(target.config.vocab_size, len(ids))  # codebook row of each target id; len(ids): not scored
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
