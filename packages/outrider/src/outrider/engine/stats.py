"""Statistics of a request."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from outrider.verify.draft import Draft
from outrider.verify.shapes import RankAcceptance


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
