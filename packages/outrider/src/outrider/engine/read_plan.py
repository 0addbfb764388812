"""Where the reading of a prompt pauses, so that copies of a recurrent state can be made for later requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence

from outrider.cache.checkpoints import BOUNDARY, ROOT, WITHIN

INTERVAL = 512  # tokens between copies in a text without messages
SPACING = 64  # the fewest tokens between copies: each costs a pass, which costs as much as reading some tokens
TAIL = 8  # the most tokens that follow the last copy, such as those that begin an answer


class ReadPlan:
    """The lengths at which a request's state is copied while its tokens are read.

    ::

        tokens      system ... end | user ..... end | begin answer
        copies                     ^                ^
        passes      [kept .........][kept .........  pending ....][drafts]

    The last copy costs no pass: the few tokens behind it are pending in the pass that reads them, and the copy has
    their entries. It serves the same prompt, and every prompt that goes on from it.
    """

    def __init__(self, tokens: Sequence[int], start: int, ends: Collection[int], pending: int) -> None:
        """
        Args:
            tokens: of the request; those before ``start`` are in the cache.
            ends: tokens that end a message.
            pending: rows of a sequence that may be dropped (``RecurrentStates``).
        """
        self.saved = start
        """The length of the last copy."""
        self.max_drafts = max(0, pending - TAIL)
        """The most draft nodes after the request's last token."""
        boundaries = [at + 1 for at in range(start, len(tokens) - 1) if tokens[at] in ends]
        last = max((at for at in boundaries if len(tokens) - at <= TAIL), default=len(tokens) - 1)
        inner = [at for at in boundaries if at < last]
        points = sorted({*inner, *range(start // INTERVAL * INTERVAL + INTERVAL, last, INTERVAL)})
        previous, lengths = start, []
        for at in points:
            # The last message may be replaced, so the copy before it is made however short the message is.
            if at - previous >= SPACING or (inner and at == inner[-1] and at - start >= SPACING):
                lengths.append(at)
                previous = at
        self._lengths = [*lengths, last] if last > start else lengths
        self._root = next((at + 1 for at, token in enumerate(tokens) if token in ends), 0)
        self._within = {*self._lengths} - {*boundaries, last}
        self._end = len(tokens)

    def chunk(self, start: int, most: int) -> int:
        """The tokens of the next pass from ``start`` on, at most ``most``: up to the next copy, or to the end."""
        at = bisect_right(self._lengths, start)
        if at == len(self._lengths) or start + most <= self._lengths[at]:
            return most
        is_last = at == len(self._lengths) - 1
        return most if is_last and start + most >= self._end else self._lengths[at] - start

    def kept(self, start: int, count: int) -> int:
        """Of the ``count`` tokens that a pass reads from ``start`` on, those that the state takes in for good."""
        at = bisect_right(self._lengths, start)
        return count if at == len(self._lengths) else min(count, self._lengths[at] - start)

    def worth(self, settled: int) -> int:
        """The worth of a copy of ``settled`` rows (``Checkpoint``)."""
        return ROOT if settled == self._root else WITHIN if settled in self._within else BOUNDARY

    def is_due(self, settled: int) -> bool:
        """Whether a state of ``settled`` rows is to be copied now."""
        return settled != self.saved and settled in self._lengths
