"""Input and output of a forward pass: packed tokens of any number of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.models.experts import ExpertReads

__all__ = ["BatchPart", "ForwardBatch", "ForwardOutput", "SequenceInput", "Span", "pack", "split"]

AnyArray = Any
"""NumPy arrays for the native library, tensors of torch for other implementations (``verify.arrays.Array``)."""


@dataclass(frozen=True)
class Span:
    """The tokens of one sequence in a forward pass, and their rows of the cache.

    cache slot:   [ kept rows 0 .. start-1 | new rows start .. start+count-1 ]
    positions:      0 .. start-1             start + depth of each new row
    """

    slot: int
    start: int  # cache rows kept before this pass
    count: int  # new rows, packed next to each other in the batch
    mask: NDArray[np.bool_] | None = None
    """bool [n, t]: for each of the sequence's last n rows, which of its last t rows it attends to; n <= count, n <= t.

    The n rows attend to all rows before the t. New rows before the n are causal; without a mask, all new rows are."""
    adapter: int | None = None  # address of the adapter's matrices (``outrider.models.adapters``)
    kept: int | None = None
    """New rows that recurrent states take in for good (``cache.states``); None: all that have no mask.

    -1: not even the pending rows before ``start``. Caches without states can drop all rows."""
    branch: int | None = None
    """The branch of ``slot`` (``HybridCache.branch``) with the state that the rows go on from; None: that of ``slot``.

    Spans of one slot's branches share its rows, and no row sees another span's new ones."""

    @property
    def state(self) -> int:
        """The slot or branch whose state the rows go on from."""
        return self.slot if self.branch is None else self.branch

    @property
    def num_kept(self) -> int:
        """``kept``, with None resolved."""
        if self.kept is not None:
            return self.kept
        return self.count - (0 if self.mask is None else len(self.mask))


@dataclass(frozen=True)
class ForwardBatch:
    """Input of a forward pass. Plain integers: the native library takes them, and torch makes tensors of them."""

    token_ids: Sequence[int]  # [T]
    positions: Sequence[int]  # [T]
    spans: tuple[Span, ...]  # in packing order; their counts sum to T
    logit_rows: Sequence[int] | None  # [R], tokens of the batch that need logits; None: all
    layers: int | None = None  # number of first layers to run before final norm and LM head; None: all
    features: tuple[int, ...] = ()
    """Layer counts, ascending. The output has every token's residual stream after each count, before any norm."""
    inputs: AnyArray | None = None  # float [T, d] in place of the tokens' embeddings


@dataclass(frozen=True)
class SequenceInput:
    """The tokens of one sequence for a forward pass, before they are packed with those of other sequences."""

    slot: int
    start: int  # the cache row of the first token
    tokens: Sequence[int]
    positions: Sequence[int]
    logit_rows: Sequence[int]  # indices of tokens that need logits, in the order of the output
    mask: NDArray[np.bool_] | None = None  # as in ``Span``
    adapter: int | None = None  # as in ``Span``
    kept: int | None = None  # as in ``Span``
    branch: int | None = None  # as in ``Span``

    def span(self) -> Span:
        """Its rows in a pass."""
        return Span(self.slot, self.start, len(self.tokens), self.mask, self.adapter, self.kept, self.branch)


def pack(
    sequences: Sequence[SequenceInput], *, layers: int | None = None, features: tuple[int, ...] = ()
) -> ForwardBatch:
    """One forward pass over the tokens of all ``sequences``; ``layers`` and ``features`` as in ``ForwardBatch``.

    ::

        sequence 1  [ a b c d ]  logit_rows (3, 2)      token_ids   a b c d e f
        sequence 2  [ e f ]      logit_rows (1,)        logit_rows  3 2 5
    """
    if len(sequences) == 1:
        only = sequences[0]
        return ForwardBatch(only.tokens, only.positions, (only.span(),), only.logit_rows, layers, features)
    token_ids: list[int] = []
    positions: list[int] = []
    spans: list[Span] = []
    logit_rows: list[int] = []
    for each in sequences:
        first = len(token_ids)
        spans.append(each.span())
        logit_rows += [first + row for row in each.logit_rows]
        token_ids += each.tokens
        positions += each.positions
    return ForwardBatch(token_ids, positions, tuple(spans), logit_rows, layers, features)


@dataclass(frozen=True)
class ForwardOutput:
    """Output of a forward pass over T tokens, R of which have logits."""

    logits: AnyArray  # float [R, vocab]
    hidden: AnyArray  # float [R, d], after the final norm
    features: AnyArray | None = None  # float [T, len(features) * d]: for each token, the requested ones joined
    experts: ExpertReads | None = None  # None: the model has none, or its implementation does not count them


@dataclass(frozen=True)
class BatchPart:
    """Some sequences of a batch as a batch of their own, and the places of its rows in the whole batch."""

    batch: ForwardBatch
    rows: Sequence[int]  # of the whole batch's T
    logit_rows: Sequence[int]  # of the whole batch's R


def split(batch: ForwardBatch, first: Callable[[Span], bool]) -> list[BatchPart]:
    """Split ``batch`` in two: the sequences for which ``first`` is true, and the others.

    Both must exist, and ``inputs`` must be None.
    """
    chosen = [first(span) for span in batch.spans]
    scored = range(len(batch.token_ids)) if batch.logit_rows is None else batch.logit_rows
    groups = [own for span, own in zip(batch.spans, chosen, strict=True) for _ in range(span.count)]
    parts: list[BatchPart] = []
    for group in (True, False):
        rows = [row for row, own in enumerate(groups) if own is group]
        place = {row: i for i, row in enumerate(rows)}
        logit_rows = [i for i, row in enumerate(scored) if groups[row] is group]
        own = replace(
            batch,
            token_ids=[batch.token_ids[row] for row in rows],
            positions=[batch.positions[row] for row in rows],
            spans=tuple(span for span, belongs in zip(batch.spans, chosen, strict=True) if belongs is group),
            logit_rows=[place[scored[i]] for i in logit_rows],
        )
        parts.append(BatchPart(own, rows, logit_rows))
    return parts
