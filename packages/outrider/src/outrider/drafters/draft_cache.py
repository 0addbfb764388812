"""A draft model with a cache of its own, which is updated when the model drafts, not in each step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from outrider.cache import CacheSpec, KVCache
from outrider.drafters.trees.draft_batch import Feed, run
from outrider.models.base import Model
from outrider.models.inputs import TEXT, InputSource
from outrider.utils.row_cost import RowCost
from outrider.verify.arrays import Array

PREFILL_CHUNK = 512  # the most tokens of a forward pass while the draft model reads a prompt


@dataclass(eq=False)
class CachedSequence:
    """The rows of one request in the draft model's cache."""

    slot: int
    cached: list[int] = field(default_factory=list)  # the tokens of the rows
    users: int = 0  # draft sources that use these rows
    committed: int = 0  # first rows that will never be dropped: recurrent states take them in for good


class DraftModel:
    """A draft model with its cache.

    Before drafting, a request's rows are truncated to their common prefix with the text, and the rest is prefilled.
    First use, refused drafts, full acceptance, preemption and resumption are thus one case.
    """

    def __init__(
        self,
        model: Model,
        *,
        vocab_size: int,
        cache: CacheSpec,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``vocab_size``: tokens shared with the target; later columns are padding.

        ``cache``: the target's specification. The draft model's cache has the same number of sequences, its own
        context length, and no prefix reuse, because it is not filled in step with the target's.
        """
        self.model, self.vocab_size = model, vocab_size
        self.max_seq_len = min(cache.max_seq_len, model.config.max_seq_len)
        self.cache: KVCache = model.new_cache(
            replace(cache, max_seq_len=self.max_seq_len, prefix_reuse=False, branches=0)
        )
        self.sequences: dict[str, CachedSequence] = {}
        self._clock, self._cost = clock, RowCost()
        self._unread: dict[int, InputSource] = {}  # inputs not encoded yet, by slot

    def start(self, request_id: str, given: InputSource = TEXT) -> None:
        """A source begins to draft for a request; several sources share the request's slot.

        The encoder runs in the first pass: it counts as drafting, and costs nothing for a request without drafts.
        """
        if request_id not in self.sequences:
            slot = self.cache.allocate()
            self.sequences[request_id] = CachedSequence(slot)
            self._unread[slot] = given
        self.sequences[request_id].users += 1

    def finish(self, request_id: str) -> None:
        """A source has finished with a request; the last source frees the slot."""
        sequence = self.sequences.get(request_id)
        if sequence is not None:
            sequence.users -= 1
            if sequence.users <= 0:  # below 0: a failed release is tried again
                slot = self.sequences.pop(request_id).slot
                self._unread.pop(slot, None)
                self.cache.free(slot)

    def remaining_context(self, length: int) -> int:
        """The number of draft tokens that the model's context allows after ``length`` tokens."""
        return max(0, self.max_seq_len - length)

    def truncate(self, sequence: CachedSequence, tokens: Sequence[int], most: int) -> None:
        """Drop the rows beyond the common prefix of the cached tokens and ``tokens``, and beyond ``most`` rows."""
        kept, states = min(_common_prefix(sequence.cached, tokens), most), self.cache.states
        if states is not None and kept < states.settled(sequence.slot):
            kept = 0  # a recurrent state cannot go back: the text is read again
        self.cache.truncate_to(sequence.slot, kept)
        del sequence.cached[kept:]

    def can_extend(self, sequence: CachedSequence, count: int) -> bool:
        return self.cache.can_extend(sequence.slot, count)

    def prefill(
        self,
        texts: Sequence[tuple[CachedSequence, Sequence[int]]],
        seconds_left: Callable[[], float] = lambda: math.inf,
    ) -> dict[int, Array]:
        """Run the model over the uncached part of every text, in shared passes of limited size.

        Returns:
            By index in ``texts``, the logits [1, vocab] after the text's last token. Texts that did not fit into
            memory or into ``seconds_left`` (see ``RequestView``) are left out.
        """
        last: dict[int, Array] = {}
        left = list(range(len(texts)))
        began: float | None = None
        while left:
            work: list[tuple[int, Sequence[int]]] = []
            room = PREFILL_CHUNK
            if (seconds := seconds_left()) != math.inf:
                if began is not None and seconds <= 0:
                    break
                room = min(room, self._cost.rows_within(seconds))
            for i in left:
                sequence, tokens = texts[i]
                piece = tokens[len(sequence.cached) : len(sequence.cached) + room]
                if piece and self.can_extend(sequence, len(piece)):
                    work.append((i, piece))
                    room -= len(piece)
            if not work:
                break
            began = self._clock()
            logits = self.extend([(texts[i][0], piece, 1) for i, piece in work])
            self._cost.observe(sum(len(piece) for _, piece in work), self._clock() - began)
            for (i, _), rows in zip(work, logits, strict=True):
                if len(texts[i][0].cached) == len(texts[i][1]):
                    last[i] = rows
            left = [i for i in left if i not in last]
        return last

    def extend(self, work: Sequence[tuple[CachedSequence, Sequence[int], int]]) -> list[Array]:
        """Append tokens to each sequence in one pass. ``work``: sequence, tokens, and the number of last rows scored.

        Returns the scored rows' logits [scored, vocab] of each sequence.
        """
        feeds: list[Feed] = []
        for sequence, tokens, scored in work:
            start = len(sequence.cached)
            positions, kept = range(start, start + len(tokens)), min(sequence.committed - start, len(tokens))
            feeds.append(Feed(sequence.slot, start, tokens, positions, scored=scored, kept=max(-1, kept)))
            sequence.cached += tokens
        return self.run(feeds)

    def run(self, feeds: Sequence[Feed]) -> list[Array]:
        """Make room in the cache and run one pass: the logits of every feed's scored rows."""
        for feed in feeds:
            self._unread.pop(feed.slot, TEXT).attach(self.model, self.cache, feed.slot)
            self.cache.extend(feed.slot, len(feed.tokens))
        return run(self.model, self.cache, feeds)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the longest common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:  # the usual case, compared without a Python loop
        return n
    return next(i for i in range(n) if a[i] != b[i])
