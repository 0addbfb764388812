"""The base of drafters whose layers cache a row for each of the target's features (eagle, dflash)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from outrider.cache import KVCache
from outrider.cache.sessions import SessionStore
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.draft_cache import PREFILL_CHUNK
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.trained.native_head import NativeHead
from outrider.drafters.trained.runner import HeadRunner
from outrider.drafters.trained.sequences import SHARED, FeatureSequence, Prefixes, rows_digest
from outrider.models.batch import Span
from outrider.verify.arrays import Array, copied, joined


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

    def keep_rows(self, store: SessionStore | None, hidden_size: int) -> None:
        """Keep the rows of the layers in ``store``, if there is one; ``hidden_size``: of the target."""
        if store is not None and isinstance(self._runner, NativeHead) and not self._reach:
            self._prefixes.keep_in(store, rows_digest(self._runner, len(self.feature_layers) * hidden_size))

    def start(self, request: RequestView) -> None:
        self.finish(request.id)
        self._requests[request.id] = request
        if self._prefixes.are_kept:  # rows come from files while the target reads what is new
            self._sequences[request.id] = self._prefixes.begin(request)

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
            self._prefixes.free(self._sequences.pop(request_id))

    def read(self, request: RequestView, start: int, features: Array) -> None:
        if request.id not in self._sequences:
            self._sequences[request.id] = self._prefixes.begin(self._requests[request.id])
        sequence = self._sequences[request.id]
        if sequence.arriving:
            sequence.early.append((start, copied(features)))
            return
        if sequence.end < 0:
            self._prefixes.settle(sequence, start)
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
        for sequence in self._prefixes.arrived():
            for start, features in sequence.early:
                self.read(sequence.request, start, features)
            sequence.early.clear()
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
