"""The base of drafters whose layers read their own outputs to go on, level by level (eagle, mtp)."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.api import RequestView
from outrider.drafters.draft_cache import PREFILL_CHUNK
from outrider.drafters.heads.calibration import Calibration
from outrider.drafters.trained.feature_drafter import FeatureDrafter
from outrider.drafters.trained.native_head import NativeHead
from outrider.drafters.trained.runner import HeadRunner
from outrider.drafters.trees.pending_draft import PendingDraft, drafts_of, grow
from outrider.models.batch import Span
from outrider.verify.arrays import Array, host, joined, split_rows
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.shapes import Acceptance


class LevelDrafter(FeatureDrafter):
    """Drafts level by level.

    The layers read each of the target's features with the token after it, and the last row guesses the token after the
    last token. Draft rows read the layers' own outputs instead of features. Once their tokens are accepted, the
    target's features replace these rows.
    """

    def __init__(
        self,
        runner: HeadRunner,
        feature_layers: tuple[int, ...],
        *,
        source: str,
        vocab_size: int,
        reach: int = 0,
        learned: Acceptance = (),
        calibration: Calibration = (),
    ) -> None:
        """
        Args:
            source: the name of the draft source.
            vocab_size: logits from this column on are padding.
            reach: as in ``FeatureDrafter``.
            learned, calibration: as in ``PendingDraft``.
        """
        self._source, self._vocab_size = source, vocab_size
        self._learned, self._calibration = learned, calibration
        super().__init__(runner, feature_layers, reach)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Drafts for requests all of whose tokens but the last have been read."""
        asked = self._asked(requests, budgets)
        if len(asked) == 1:
            each = self._pending(*next(iter(asked.values())))
            if self._draft_chain(each):
                return drafts_of([each], requests, self._source)
        ready = self._run_waiting([request for request, _ in asked.values()])
        if not ready:
            return [EMPTY] * len(requests)
        pending = [self._pending(request, budget) for id, (request, budget) in asked.items() if id in ready]
        last = [self._sequences[each.request.id].logits for each in pending]
        grow(pending, last, fits=self._fits, run=self._grow, source=self._source)
        for each in pending:
            sequence = self._sequences[each.request.id]
            self._cache.truncate_to(sequence.slot, len(sequence.positions))
            sequence.outputs = sequence.outputs[:1]
        return drafts_of(pending, requests, self._source)

    def _pending(self, request: RequestView, budget: int) -> PendingDraft:
        slot, vocabulary = self._sequences[request.id].slot, self._runner.vocabulary
        return PendingDraft(request, slot, budget, self._vocab_size, self._learned, vocabulary, self._calibration)

    def _draft_chain(self, each: PendingDraft) -> bool:
        """Draft a chain for a single request in one native call; False, without effect, where that is impossible."""
        chain = self._runner.chain if isinstance(self._runner, NativeHead) else None
        sequence = self._sequences[each.request.id]
        count, levels = sequence.num_waiting, min(each.room, each.request.depth_limit)
        if chain is None or not (0 < count <= PREFILL_CHUNK and levels > 0):
            return False
        race = each.race(chain.columns)
        if race is None or not self._cache.can_extend(sequence.slot, count + levels - 1):
            return False
        positions, features = sequence.next(count)
        span = Span(sequence.slot, len(sequence.positions), count)
        self._cache.extend(sequence.slot, count + levels - 1)
        sequence.take(positions)

        def found(token: int, score: float) -> bool:
            each.add(token, score)
            return each.frontier_size > 0 and each.should_continue(self._source)

        tokens = [each.request.tokens[position + 1] for position in positions]
        sequence.outputs, sequence.logits = chain.run(host(features), tokens, positions, span, race, levels, found)
        self._cache.truncate_to(sequence.slot, len(sequence.positions))
        self._prefixes.share(sequence)
        return True

    def _fits(self, each: PendingDraft, rows: int) -> bool:
        return self._cache.can_extend(each.slot, rows)

    def _grow(self, growing: Sequence[PendingDraft]) -> list[Array]:
        """The logits [n, vocab] of each draft's level, from a pass that takes each node's parent output as feature."""
        feeds = [each.feed() for each in growing]
        sequences = [self._sequences[each.request.id] for each in growing]
        before = [_rows(sequence.outputs, feed.above) for sequence, feed in zip(sequences, feeds, strict=True)]
        spans = [
            Span(sequence.slot, len(sequence.positions) + len(sequence.outputs) - 1, len(feed.tokens), feed.mask)
            for sequence, feed in zip(sequences, feeds, strict=True)
        ]
        tokens = [token for feed in feeds for token in feed.tokens]
        positions = [position - 1 for feed in feeds for position in feed.positions]
        out, logits = self._run(joined(before), tokens, positions, spans, range(len(tokens)))
        counts = [span.count for span in spans]
        for sequence, part in zip(sequences, split_rows(out, counts), strict=True):
            sequence.outputs = joined([sequence.outputs, part])
        return split_rows(logits, counts)


def _rows(outputs: Array, above: Sequence[int]) -> Array:
    """The rows of ``outputs`` [1 + fed, d] for the draft rows ``above``; -1 is the first row: [len(above), d]."""
    found: Array = outputs[1 + above[0], None] if len(above) == 1 else outputs[[1 + row for row in above]]
    return found
