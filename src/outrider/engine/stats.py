"""What a request cost and what its drafts won."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from outrider.core.draft import Draft
from outrider.core.tree import depths


@dataclass
class RequestStats:
    """Counts and times of one request; rates are derived, so that they cannot disagree with the counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    target_runs: int = 0
    """Target runs that emitted tokens; runs that only read a part of the prompt are not among them."""
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    drafted_at: Counter[int] = field(default_factory=Counter)
    """How many drafts had a token at depth i."""
    accepted_at: Counter[int] = field(default_factory=Counter)
    draft_s: float = 0.0
    """Time spent in draft sources, shared with other requests of the same steps."""
    prefill_s: float = 0.0
    """From the request's first run to its first token."""
    decode_s: float = 0.0
    """From the first token to the last."""
    draft_error: str | None = None
    """Why the draft source was switched off for this request, if it was."""

    def count(self, draft: Draft, accepted: int) -> None:
        """Count one target run: its draft, and how many tokens along one path were kept."""
        self.target_runs += 1
        self.num_drafts += bool(draft)
        self.num_draft_tokens += len(draft)
        self.num_accepted_draft_tokens += accepted
        self.drafted_at.update(set(depths(draft.parents)))
        self.accepted_at.update(range(accepted))

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
            "prefill_s": round(self.prefill_s, 4),
            "decode_s": round(self.decode_s, 4),
            "tokens_per_s": _rounded(self.tokens_per_s, 2),
            **({"draft_error": self.draft_error} if self.draft_error else {}),
        }


def _rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)
