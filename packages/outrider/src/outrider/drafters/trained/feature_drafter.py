"""The base of drafters whose layers cache a row for each of the target's features (eagle, dflash)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from outrider.cache import KVCache
from outrider.cache.paged import PagedCache
from outrider.cache.tails import PrefixTails
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.draft_cache import PREFILL_CHUNK
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.trained.runner import HeadRunner
from outrider.models.batch import Span
from outrider.verify.arrays import Array, copied, host, joined

SHARED = 16
"""Rows that are shared together."""


@dataclass(eq=False)
class FeatureSequence:
    """The features and the draft cache of one request.

    ::

        cache slot   [ rows of the target's features, at ``positions`` | rows of the draft ... ]
        waiting      features that the layers have not read yet
    """

    request: RequestView
    slot: int
    shared: int  # rows that other sequences can find
    positions: list[int] = field(default_factory=list)  # ascending, with gaps: a prefix cache's tokens have no features
    waiting: list[tuple[range, Array]] = field(default_factory=list)  # positions, float [n, width]
    end: int = 0  # the position after the last feature
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

    def begin(self, request: RequestView, start: int) -> FeatureSequence:
        """A sequence whose first features are those at ``start``, with the rows before it that are found."""
        if not self._cache.prefix_reuse:
            return FeatureSequence(request, self._cache.allocate(), 0)
        keys, salt = _keys(request, len(request.tokens))
        slot = self._cache.allocate([*keys, 0], salt)  # never the last one's row
        if self._tails is not None:
            self._tails.restore(slot, keys, salt)
        held = min(start, self._cache.length(slot))
        self._cache.truncate_to(slot, held)
        return FeatureSequence(request, slot, held, positions=list(range(held)), end=held)

    def share(self, sequence: FeatureSequence, more: int = SHARED) -> None:
        """Let others find the sequence's rows if there are ``more`` than before."""
        rows = len(sequence.positions)
        if self._cache.prefix_reuse and rows >= sequence.shared + more and sequence.is_whole:
            self._cache.publish_prefix(sequence.slot, *_keys(sequence.request, rows))
            sequence.shared = rows

    def end(self, sequence: FeatureSequence) -> None:
        """Keep all rows of a sequence that ends, unless its numbers are not finite."""
        if np.isfinite(host(sequence.outputs)).all():
            self.share(sequence, more=1)
            if self._tails is not None:
                keys, salt = _keys(sequence.request, len(sequence.positions))
                self._tails.save(sequence.slot, keys, salt)


def _keys(request: RequestView, rows: int) -> tuple[Sequence[int], str]:
    """The keys of the first rows, and their salt."""
    keys = request.prefix_keys
    return keys[1 : rows + 1], f"{keys[0]}\0{request.prefix_salt}"


class FeatureDrafter(Drafter):
    """Takes the target's features of committed tokens, and runs them through its layers before the next draft.

    The row at position t pairs the target's feature at t with the token at t + 1 and guesses the token at t + 2.
    """

    def __init__(self, runner: HeadRunner, feature_layers: tuple[int, ...], reach: int = 0) -> None:
        """``reach``: the number of last rows that an output of the layers depends on, its own included; 0: all."""
        self.feature_layers, self._reach = feature_layers, reach
        self._runner, self._cache = runner, runner.cache
        self._requests: dict[str, RequestView] = {}
        self._sequences: dict[str, FeatureSequence] = {}  # of the requests with features
        self._prefixes = Prefixes(self._cache)

    @property
    def runner(self) -> HeadRunner:
        """The runner of the layers."""
        return self._runner

    @property
    def caches(self) -> Sequence[KVCache]:
        return (self._cache,)

    def start(self, request: RequestView) -> None:
        self.finish(request.id)
        self._requests[request.id] = request

    def finish(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return
        try:
            if self._cache.prefix_reuse and len(sequence.outputs) and sequence.is_whole:
                self._run_waiting([sequence.request])
                self._prefixes.end(sequence)
        finally:
            self._cache.free(self._sequences.pop(request_id).slot)

    def read(self, request: RequestView, start: int, features: Array) -> None:
        if request.id not in self._sequences:
            self._sequences[request.id] = self._prefixes.begin(self._requests[request.id], start)
        sequence = self._sequences[request.id]
        if start < sequence.end:  # the request is read again
            self._cache.truncate_to(sequence.slot, sequence.forget(start))
        if 0 < start - sequence.end < SHARED:  # what sharing whole blocks loses: rows of tokens alone
            missing = range(sequence.end, start)
            sequence.waiting.append((missing, features[[0] * len(missing)] * 0))
        sequence.end = start + len(features)
        sequence.waiting.append((range(start, sequence.end), features))
        if self._reach:  # later rows do not depend on the features before these
            sequence.keep_last(self._reach)

    def _asked(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> dict[str, tuple[RequestView, int]]:
        """By id, the requests with a budget whose tokens have all been read but the last."""
        return {
            request.id: (request, budget)
            for request, budget in zip(requests, budgets, strict=True)
            if budget > 0
            and request.id in self._sequences
            and self._sequences[request.id].end == len(request.tokens) - 1
        }

    def _run_waiting(self, requests: Sequence[RequestView], leave: int = 0) -> set[str]:
        """Run the layers over each request's waiting features but the last ``leave``, in passes of limited size.

        Returns:
            The ids of the requests whose features fitted into the cache.
        """

        def left(request: RequestView) -> bool:
            return self._sequences[request.id].num_waiting > leave

        waiting = list(filter(left, requests))
        while waiting and self._run_some(waiting, leave):
            waiting = list(filter(left, waiting))
        return {request.id for request in requests if not left(request)}

    def _run_some(self, requests: Sequence[RequestView], leave: int) -> bool:
        """One pass of ``_run_waiting``; whether the cache had room for any feature."""
        fed: list[FeatureSequence] = []
        spans: list[Span] = []
        tokens: list[int] = []
        positions: list[int] = []
        features: list[Array] = []
        for request in requests:
            sequence = self._sequences[request.id]
            at, some = sequence.next(min(PREFILL_CHUNK - len(tokens), sequence.num_waiting - leave))
            if at and self._cache.can_extend(sequence.slot, len(at)):
                fed.append(sequence)
                spans.append(Span(sequence.slot, len(sequence.positions), len(at)))
                tokens += [request.tokens[position + 1] for position in at]
                positions += at
                features.append(some)
                sequence.take(at)
        if not fed:
            return False
        last = [end - 1 for end in accumulate(span.count for span in spans)]
        out, logits = self._run(self._runner.fuse(joined(features)), tokens, positions, spans, last)
        for i, sequence in enumerate(fed):
            sequence.outputs, sequence.logits = copied(out[last[i] : last[i] + 1]), logits[i : i + 1]
            self._prefixes.share(sequence)
        return True

    def _run(
        self,
        features: Array,
        tokens: Sequence[int],
        positions: Sequence[int],
        spans: Sequence[Span],
        logit_rows: Sequence[int],
        added: Array | None = None,
    ) -> tuple[Array, Array]:
        """Make room in the cache and run one pass: outputs [T, d] and the logits of ``logit_rows`` (``HeadRunner``)."""
        for span in spans:
            self._cache.extend(span.slot, span.count)
        return self._runner.run(features, tokens, positions, spans, logit_rows, added)


def reach_of(config: HeadConfig) -> int:
    """The number of rows that an output depends on through all layers' attention windows; 0: all."""
    return config.num_layers * (config.window - 1) + 1 if config.window else 0
