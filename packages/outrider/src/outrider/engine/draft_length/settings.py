"""The constants of the adaptive draft length; docs/algorithms/adaptive.md says what each is worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DraftLengthSettings:
    """Constants of ``spec_length="auto"``. They change how fast output tokens come, never which."""

    loss_share: float = 0.02
    """Share of the decoded tokens' time that drafting may lose. Larger: losing sources are tried more often."""
    credit: float = 8.0
    """Plain tokens (see ``net_loss``) that a source may lose in a domain, and the most that an account holds. Larger:
    bolder drafts, and a source that begins to lose is given up later."""
    first: float = 2.0
    """The same of a domain and a class that have earned nothing yet. Larger: bolder first requests."""
    own_first: float = 0.5
    """Plain steps that a request may lose for its prompt, of ``loss_share`` of whose time it is. Larger: bolder first
    drafts of short answers."""
    ahead: float = 0.02
    """Share of the time of the tokens that it may have which a request is lent. Larger: bolder short answers."""
    looking: float = 0.005
    """Share of the time that a source may be asked for which was worth less than it takes. Larger: gains are found
    sooner again."""
    margin: float = 1.5
    """Times what a row takes that it must be expected to save while its request has nothing left. Larger: fewer losses,
    smaller gains."""
    lent: float = 0.25
    """Share of the credit left to its class that a new request may lose. Larger: bolder first drafts."""
    at_once: float = 0.5
    """Share of the credit left to a request that one step may spend. Larger: fewer, bolder attempts."""
    prior_variance: float = 0.5
    """Variance of the log-odds by which the scores of a source may be wrong. Larger: observations count sooner."""
    request_variance: float = 0.3
    """The same for one request. Larger: a request's last tokens decide sooner, with more noise."""
    least_variance: float = 0.01
    """Lower limit of a source's variance: 0.01 remembers about 400 tokens. Larger: estimates follow changes sooner."""
    unknown_score: float = 0.5
    """The probability of a token without a score. Larger: longer first drafts."""
    max_probability: float = 0.98
    """The highest estimate of a probability; 1 minus it is the lowest score. Larger: longer drafts until one fails."""
    weight: float = 0.05
    """Weight of one observed duration in the averages. Larger: costs follow the machine faster, and its noise too."""
    calibration_s: float = 0.4
    """Seconds of calibration; a slow model's takes as long as six passes. Longer: less noise in T."""


DEFAULT_SETTINGS = DraftLengthSettings()
