"""Statistics of a request, of draft sources and of the engine."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from outrider.verify.draft import Draft
from outrider.verify.shapes import RankAcceptance

logger = logging.getLogger(__name__)

LOG_EVERY = 5.0  # seconds of activity between log lines


@dataclass
class RequestStats:
    """Counts and times of one request; rates are derived, so that they cannot disagree with the counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    target_runs: int = 0
    """Target runs that emitted tokens; runs that only read the prompt are not counted."""
    beam_steps: int = 0
    """Steps of a beam search, all beams together; 0 without beams."""
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    drafted_at: Counter[int] = field(default_factory=Counter)
    """By depth: drafts with a token at this depth."""
    accepted_at: Counter[int] = field(default_factory=Counter)
    drafted_by: Counter[str] = field(default_factory=Counter)
    """Draft tokens by the source that proposed them."""
    accepted_by: Counter[str] = field(default_factory=Counter)
    """Accepted draft tokens by the source that proposed them."""
    by_rank: RankAcceptance = field(default_factory=RankAcceptance)
    """In drafts that branch: how often a visited node's r-th child was accepted (``verify.shapes.optimal``)."""
    rounds: list[tuple[int, int]] = field(default_factory=list)
    """Drafted and accepted tokens of each target run."""
    cached_prompt_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    draft_s: float = 0.0
    """Time spent in draft sources, shared with other requests of the same steps."""
    queue_s: float = 0.0
    """From the request's arrival to its first run."""
    prefill_s: float = 0.0
    """From the request's first run to its first token."""
    decode_s: float = 0.0
    """From the first token to the last."""
    exact: bool = True
    """False for a verifier that changes the target's distribution."""
    draft_error: str | None = None
    """The reason why draft sources were switched off for this request; None if none was."""

    def count(self, draft: Draft, path: Sequence[int]) -> None:
        """Count one target run: its draft and the accepted nodes ``path``."""
        drafted, accepted = len(draft), len(path)
        self.target_runs += 1
        self.rounds.append((drafted, accepted))
        if not drafted:
            return
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_accepted_draft_tokens += accepted
        for depth in range(max(draft.depths) + 1):
            self.drafted_at[depth] += 1
        for depth in range(accepted):
            self.accepted_at[depth] += 1
        for node in range(drafted):
            self.drafted_by[draft.source_of(node)] += 1
        for node in path:
            self.accepted_by[draft.source_of(node)] += 1
        if not draft.is_chain:
            self.by_rank.observe(draft, path)

    def add(self, other: RequestStats) -> None:
        """Add the statistics of another request."""
        for each in fields(self):
            ours, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(ours, Counter):
                ours.update(theirs)
            elif isinstance(ours, RankAcceptance):
                ours.add(theirs)
            elif isinstance(ours, bool):
                setattr(self, each.name, ours and theirs)
            elif isinstance(ours, int | float | list):
                setattr(self, each.name, ours + theirs)
            else:
                setattr(self, each.name, ours or theirs)

    @property
    def draft_acceptance_rate(self) -> float | None:
        """α: accepted ÷ drafted tokens; None if nothing was drafted."""
        return self.num_accepted_draft_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """τ: tokens emitted per target run, the recovered or bonus token included."""
        return self.completion_tokens / self.target_runs if self.target_runs else None

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of drafts whose token at depth 0, 1, ... was accepted, among drafts that long."""
        return [self.accepted_at[i] / self.drafted_at[i] for i in range(len(self.drafted_at))]

    @property
    def by_source(self) -> dict[str, dict[str, int]]:
        """Drafted and accepted tokens of each source."""
        return {name: {"drafted": n, "accepted": self.accepted_by[name]} for name, n in self.drafted_by.items()}

    @property
    def tokens_per_s(self) -> float | None:
        """Completion tokens ÷ all time, prefill included."""
        seconds = self.prefill_s + self.decode_s
        return self.completion_tokens / seconds if seconds > 0 else None

    def as_dict(self) -> dict[str, Any]:
        """The ``stats`` object of ``--json``."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "target_runs": self.target_runs,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "draft_acceptance_rate": _rounded(self.draft_acceptance_rate),
            "mean_acceptance_length": _rounded(self.mean_acceptance_length),
            "acceptance_by_position": [round(x, 4) for x in self.acceptance_by_position],
            "cached_prompt_tokens": self.cached_prompt_tokens,
            "prefill_s": round(self.prefill_s, 4),
            "decode_s": round(self.decode_s, 4),
            "tokens_per_s": _rounded(self.tokens_per_s, 2),
            **({"draft_sources": self.by_source} if self.drafted_by else {}),
            "exact": self.exact,
            **({"draft_error": self.draft_error} if self.draft_error else {}),
        }


def _rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)


@dataclass
class RequestTimes:
    """The times of a request's arrival, first run and first token, by ``time.perf_counter``."""

    arrived: float = field(default_factory=time.perf_counter)
    started: float | None = None  # its first run
    first_token: float | None = None

    def start(self, stats: RequestStats) -> None:
        """The request was admitted, for the first time or again."""
        if self.started is None:
            self.started = time.perf_counter()
            stats.queue_s = self.started - self.arrived

    def count(self, stats: RequestStats) -> None:
        """The request emits tokens."""
        now = time.perf_counter()
        if self.first_token is None:
            self.first_token = now
            stats.prefill_s = now - (self.started or now)
        stats.decode_s = now - self.first_token


class Queues(Protocol):
    """The scheduler, as far as statistics see it."""

    @property
    def waiting(self) -> int: ...

    @property
    def running(self) -> Sequence[object]: ...

    preemptions: int


class Room(Protocol):
    """The caches, as far as statistics see them."""

    def free_kv_tokens(self) -> int: ...


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
    _room: Room | None = None
    _mark: float = 0.0
    _scoring: float = 0.0  # seconds of this step's forward pass
    _begun: float = 0.0
    _logged: tuple[float, int, float] = (0.0, 0, 0.0)  # busy seconds, tokens and draft seconds at the last log line

    @property
    def tokens_per_s(self) -> float:
        """Over all busy time."""
        return self.tokens / self.busy_s if self.busy_s else 0.0

    @property
    def draft_share(self) -> float:
        """Share of busy time spent in draft sources."""
        return self.draft_s / self.busy_s if self.busy_s else 0.0

    @property
    def overhead_s(self) -> float:
        """Busy time spent neither drafting nor in target runs: scheduling, verification, bookkeeping."""
        return self.busy_s - self.draft_s - self.score_s

    def begin(self, queues: Queues, room: Room) -> None:
        """A step begins."""
        self._begun = self._mark = time.perf_counter()
        self._scoring = self._admitting = 0.0
        self.waiting, self.running, self.preemptions = queues.waiting, len(queues.running), queues.preemptions
        self._room = room

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
                0 if self._room is None else self._room.free_kv_tokens(),
                (self.tokens - before) / span,
                100 * (self.draft_s - drafting) / span,
            )
            self._logged = (self.busy_s, self.tokens, self.draft_s)
        return spent - self._scoring - self._admitting
