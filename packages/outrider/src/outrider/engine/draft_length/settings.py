"""Every constant of the adaptive draft length; docs/algorithms/adaptive.md says what each is worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DraftLengthSettings:
    """Constants of ``spec_length="auto"``. None of them can change an output token, only how fast it comes."""

    loss_share: float = 0.02
    """Share of the decoded time that drafting may lose. Larger: losing sources are tried more often."""
    credit: float = 4.0
    """Plain steps that a source may lose in a domain, or a class of requests, before it has earned. A request: one."""
    lent: float = 0.125
    """Share of what its class has earned that a request may lose, beyond one step. Larger: bolder first drafts."""
    max_earned: float = 32.0
    """Plain steps of earnings that are kept. Larger: a source that begins to lose is given up later."""
    prior_variance: float = 1.0
    """How far off a source's scores may be, as a variance of log-odds. Larger: the record decides sooner."""
    request_variance: float = 0.15
    """How far requests differ. Larger: a request's own record decides sooner, with more noise."""
    least_variance: float = 0.01
    """Of what is known best: 0.01 remembers about 400 tokens. Larger: rates follow a change of traffic sooner."""
    unknown_score: float = 0.5
    """The probability of a token of which nothing is known. Larger: longer first drafts."""
    max_probability: float = 0.98
    """Ceiling of a probability, and 1 minus its floor. Larger: longer drafts where none has failed yet."""
    weight: float = 0.05
    """Of an observed duration. Larger: costs follow the machine faster, and its noise too."""
    calibration_s: float = 1.0
    """Seconds for calibration, at most. Longer: less noise in T."""


DEFAULT_SETTINGS = DraftLengthSettings()
