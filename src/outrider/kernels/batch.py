"""What one forward pass takes and gives: packed tokens of any number of sequences."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Span:
    """The tokens one sequence brings to a run.

    cache slot:   [ kept rows 0 .. start-1 | new rows start .. start+count-1 ]
    positions:      0 .. start-1             start + depth of each new row
    """

    slot: int
    start: int  # cache rows kept before this run
    count: int  # new rows, packed next to each other in the batch
    mask: Tensor | None = None
    """bool [n, t]: which of the sequence's last t rows each of its last n rows sees, ``n <= count``, ``n <= t``.

    These see all rows before the t, and new rows before the n are causal, as all are without a mask."""


@dataclass(frozen=True)
class ForwardBatch:
    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    spans: tuple[Span, ...]  # in packing order; their counts sum to T
    logit_rows: Tensor | None  # int64 [R], rows that need the LM head; None: all
    layers: int | None = None  # run only so many of the first layers, then final norm and LM head; None: all
    features: tuple[int, ...] = ()
    """Layer counts, ascending: the residual stream after so many layers, before any norm, is wanted of every token."""
    inputs: Tensor | None = None  # float [T, d] in place of the tokens' embeddings


@dataclass(frozen=True)
class ForwardOutput:
    logits: Tensor  # float [R, vocab]
    hidden: Tensor  # float [R, d], after the final norm
    features: Tensor | None = None  # float [T, len(features) * d], those asked for side by side, for all T tokens
