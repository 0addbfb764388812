"""The sequences of a head's own cache: their rows, and the beginnings that they share."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.cache import KVCache
from outrider.cache.paged import PagedCache
from outrider.cache.rows import row_numbers
from outrider.cache.sessions import SessionStore
from outrider.cache.sessions.moving import Sessions
from outrider.cache.tails import PrefixTails
from outrider.drafters.api import RequestView
from outrider.drafters.trained.runner import HeadRunner
from outrider.models.batch import Span
from outrider.verify.arrays import Array, copied, host, joined

SHARED = 16
"""Rows that are shared together."""
_PROBE = 24  # rows by which a head is told from another


@dataclass(eq=False)
class FeatureSequence:
    """The features and the draft cache of one request.

    ::

        cache slot   [ rows of the target's features, at ``positions`` | rows of the draft ... ]
        waiting      features that the layers have not read yet
    """

    request: RequestView
    slot: int
    shared: int = 0  # rows that other sequences can find
    positions: list[int] = field(default_factory=list)  # ascending, with gaps: a prefix cache's tokens have no features
    waiting: list[tuple[range, Array]] = field(default_factory=list)  # positions, float [n, width]
    end: int = -1  # the position after the last feature; -1: none has come
    arriving: bool = False  # rows are read from files: features wait in ``early``
    early: list[tuple[int, Array]] = field(default_factory=list)  # the first position, float [n, width]
    outputs: Array = field(default_factory=lambda: np.empty(0))  # [1 + fed, d], of the last feature and the draft rows
    logits: Array = field(default_factory=lambda: np.empty(0))  # [rows, scored], of the last feature and a block's rows

    @property
    def num_waiting(self) -> int:
        """The number of waiting features."""
        return sum(len(some) for some, _ in self.waiting)

    def next(self, count: int) -> tuple[list[int], Array]:
        """The positions of the first ``count`` waiting features, and the features [n, width]."""
        positions = [p for some, _ in self.waiting for p in some][:count]
        return positions, joined([features for _, features in self.waiting])[:count]

    def take(self, positions: list[int]) -> None:
        """Record that the first waiting features, at ``positions``, now have cache rows."""
        self.positions += positions
        done = positions[-1] + 1
        self.waiting = [(some[max(0, done - some[0]) :], f[max(0, done - some[0]) :]) for some, f in self.waiting]
        self.waiting = [(some, f) for some, f in self.waiting if some]

    def keep_last(self, count: int) -> None:
        """Drop all but the last ``count`` waiting features."""
        extra = self.num_waiting - count
        while extra > 0:
            some, features = self.waiting.pop(0)
            if extra < len(some):  # copied, as a view would hold the dropped rows
                self.waiting.insert(0, (some[extra:], copied(features[extra:])))
            extra -= len(some)

    @property
    def is_whole(self) -> bool:
        """Whether the cache has a row for every position up to the last one."""
        return not self.positions or self.positions[-1] == len(self.positions) - 1

    def forget(self, start: int) -> int:
        """Drop everything from position ``start`` on; returns the number of cache rows that stay."""
        del self.positions[bisect_left(self.positions, start) :]
        self.waiting = [(some[: start - some[0]], f[: start - some[0]]) for some, f in self.waiting if some[0] < start]
        return len(self.positions)


class Prefixes:
    """The rows of a draft cache that sequences share as they share the target's.

    The row at position t depends on the tokens up to t + 1: its key is the token at t + 1, and the first one's is in
    the salt.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._tails = PrefixTails(cache) if isinstance(cache, PagedCache) and cache.prefix_reuse else None
        self._sessions: Sessions | None = None
        self._head = ""
        self._arriving: dict[int, FeatureSequence] = {}  # by slot

    def keep_in(self, store: SessionStore, head: str) -> None:
        """Keep rows there too. ``head``: tells them from those of other heads."""
        self._sessions, self._head = Sessions(store, self._cache), head

    @property
    def are_kept(self) -> bool:
        """Whether rows outlive their memory, so that ``begin`` should come early."""
        return self._sessions is not None

    def begin(self, request: RequestView) -> FeatureSequence:
        """A sequence with the rows that are found, which may be too many, or still on their way (``arriving``)."""
        if not self._cache.prefix_reuse:
            return FeatureSequence(request, self._cache.allocate())
        keys, salt = _keys(request, len(request.tokens))
        slot = self._cache.allocate([*keys, 0], salt)  # never the last one's row
        sequence = FeatureSequence(request, slot)
        if self._tails is not None:
            self._tails.restore(slot, keys, salt)
        if self._sessions is not None and self._sessions.begin(slot, [*keys, 0], self._salt(salt)):
            sequence.arriving, self._arriving[slot] = True, sequence
        return sequence

    def _salt(self, salt: str) -> str:
        return f"{self._head}\0{salt}"

    def arrived(self) -> list[FeatureSequence]:
        """Those whose rows have come since the last call, or will not. A step begins: rows may be copied again."""
        if self._sessions is None:
            return []
        self._sessions.begin_step()
        found = [self._arriving.pop(slot) for slot in self._sessions.ended()] if self._arriving else []
        for sequence in found:
            sequence.arriving = False
        return found

    def settle(self, sequence: FeatureSequence, start: int) -> None:
        """Drop the rows at ``start``, where the features begin, and behind it."""
        held = min(start, self._cache.length(sequence.slot))
        self._cache.truncate_to(sequence.slot, held)
        sequence.shared, sequence.positions, sequence.end = held, list(range(held)), held

    def share(self, sequence: FeatureSequence, more: int = SHARED, *, ended: bool = False) -> None:
        """Let others find the sequence's rows if there are ``more`` than before."""
        rows = len(sequence.positions)
        if not (self._cache.prefix_reuse and sequence.is_whole):
            return
        keys, salt = _keys(sequence.request, rows)
        if rows >= sequence.shared + more:
            self._cache.publish_prefix(sequence.slot, keys, salt)
            sequence.shared = rows
        elif not ended:
            return
        if self._sessions is not None and not sequence.request.is_alone:
            self._sessions.save(sequence.slot, keys, self._salt(salt), ended=ended)

    def end(self, sequence: FeatureSequence) -> None:
        """Keep all rows of a sequence that ends, unless its numbers are not finite."""
        if np.isfinite(host(sequence.outputs)).all():
            self.share(sequence, more=1, ended=True)
            if self._tails is not None:
                keys, salt = _keys(sequence.request, len(sequence.positions))
                self._tails.save(sequence.slot, keys, salt)

    def free(self, sequence: FeatureSequence) -> None:
        """Give a sequence's slot back."""
        if self._sessions is not None:
            self._arriving.pop(sequence.slot, None)
            self._sessions.forget(sequence.slot)
        self._cache.free(sequence.slot)


def _keys(request: RequestView, rows: int) -> tuple[Sequence[int], str]:
    """The keys of the first rows, and their salt."""
    keys = request.prefix_keys
    return keys[1 : rows + 1], f"{keys[0]}\0{request.prefix_salt}"


def rows_digest(runner: HeadRunner, width: int) -> str:
    """A digest of all that a head's rows depend on: the rows of some features, of ``width`` numbers each."""
    cache, features = runner.cache, np.random.default_rng(0).standard_normal((_PROBE, width), dtype=np.float32)
    slot = cache.allocate()
    try:
        cache.extend(slot, _PROBE)
        runner.run(runner.fuse(features), range(_PROBE), range(_PROBE), [Span(slot, 0, _PROBE)], [_PROBE - 1])
        digest = hashlib.blake2b(digest_size=16)
        for part in cache.pool.read_rows(row_numbers(cache, slot, 0, _PROBE)):
            digest.update(part.tobytes())
    finally:
        cache.free(slot)
    return digest.hexdigest()
