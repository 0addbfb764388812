"""Statistics of an engine and of its draft sources."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.verify.draft import Draft

logger = logging.getLogger(__name__)

LOG_EVERY = 5.0  # seconds of activity between log lines


@dataclass
class SourceStats:
    """The statistics of one draft source over the engine's life and all requests."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    accepted_at: Counter[int] = field(default_factory=Counter)
    """By depth: drafts whose token at this depth was accepted."""


@dataclass
class EngineStats:
    """Counts over the engine's life, and the state at its last step."""

    steps: int = 0
    tokens: int = 0
    waiting: int = 0
    running: int = 0
    preemptions: int = 0
    busy_s: float = 0.0
    draft_s: float = 0.0
    score_s: float = 0.0
    sources: dict[str, SourceStats] = field(default_factory=dict)
    """By the source named in each draft."""
    _mark: float = 0.0
    _scoring: float = 0.0  # seconds of this step's forward pass
    _begun: float = 0.0
    _logged: tuple[float, int, float] = (0.0, 0, 0.0)  # busy seconds, tokens and draft seconds at the last log line

    @property
    def tokens_per_s(self) -> float:
        """Over all busy time."""
        return self.tokens / self.busy_s if self.busy_s else 0.0

    @property
    def overhead_s(self) -> float:
        """Busy time spent neither drafting nor in target runs: scheduling, verification, bookkeeping."""
        return self.busy_s - self.draft_s - self.score_s

    def begin(self, waiting: int, running: int, preemptions: int, free_kv_tokens: Callable[[], int]) -> None:
        """A step begins. ``free_kv_tokens``: the free rows of the caches, asked when they are logged."""
        self._begun = self._mark = time.perf_counter()
        self._scoring = self._admitting = 0.0
        self.waiting, self.running, self.preemptions = waiting, running, preemptions
        self._free_kv_tokens = free_kv_tokens

    def admitting(self) -> None:
        """Requests are about to be admitted."""
        self._mark = time.perf_counter()

    def admitted(self) -> None:
        """Requests were admitted: times this part, which may run encoders and build drafters, apart from the step."""
        self._admitting = time.perf_counter() - self._mark

    def drafting(self) -> None:
        self._mark = time.perf_counter()

    def drafted(self) -> None:
        now = time.perf_counter()
        self.draft_s += now - self._mark
        self._mark = now

    def scored(self) -> float:
        """The target has run; returns the seconds it took."""
        now = time.perf_counter()
        self._scoring = now - self._mark
        self.score_s += self._scoring
        self._mark = now
        return self._scoring

    def count(self, draft: Draft, accepted: int) -> None:
        """Count one request's draft, of which ``accepted`` tokens along one path were kept."""
        if draft:
            source = self.sources.setdefault(draft.source, SourceStats())
            source.num_drafts += 1
            source.num_draft_tokens += len(draft)
            source.num_accepted_draft_tokens += accepted
            for depth in range(accepted):
                source.accepted_at[depth] += 1

    def end(self, tokens: int) -> float:
        """A step ends, having emitted ``tokens``; returns its seconds without the forward pass and admissions."""
        spent = time.perf_counter() - self._begun
        self.steps += 1
        self.tokens += tokens
        self.busy_s += spent
        seconds, before, drafting = self._logged
        if self.busy_s - seconds >= LOG_EVERY:
            span = self.busy_s - seconds
            logger.info(
                "%d running, %d waiting, %d tokens of cache free, %.1f tokens/s, %.0f%% of the time drafting",
                self.running,
                self.waiting,
                self._free_kv_tokens(),
                (self.tokens - before) / span,
                100 * (self.draft_s - drafting) / span,
            )
            self._logged = (self.busy_s, self.tokens, self.draft_s)
        return spent - self._scoring - self._admitting
