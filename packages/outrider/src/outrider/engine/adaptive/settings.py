"""Every constant of the adaptive draft length in one place (docs/algorithms/adaptive.md derives what they are for)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AdaptiveSettings:
    """Constants of ``spec_length="auto"`` and of ``draft="a/b"``.

    None of them can change an output token under matching verification: they decide how much is drafted, and so only
    how fast. The defaults are those that every benchmark of this repository was measured with.
    """

    # -- acceptance: how likely a draft token is to be accepted -----------------------------------------------------

    depth_bins: int = 4
    """Depths with an acceptance rate of their own; deeper tokens share the last. More: each is learned later."""
    score_bins: int = 8
    """Bins for the drafter's own score. More: finer, but each is learned later."""
    unknown_score: float = 0.5
    """The score of a token whose drafter gives none. Larger: unknown drafters are trusted with longer drafts."""
    score_variance: float = 0.5
    """How far off scores may be at each depth, and in each bin of theirs, as a variance of log-odds. Larger: the record
    decides sooner, with more noise."""
    unknown_variance: float = 2.0
    """The same of tokens without a score. Larger: the record decides sooner, with more noise."""
    least_variance: float = 0.01
    """Of what is known best: 0.01 remembers about 400 tokens. Larger: rates follow a change of traffic sooner."""
    request_variance: float = 0.15
    """How far requests of a kind differ. Larger: a request's own record decides sooner, with more noise."""
    request_drift: float = 0.005
    """What a request's own variance grows by with each trial. Larger: its last tokens decide."""
    kind_variance: float = 0.1
    """How far kinds of requests differ. Larger: the first requests of a kind tell more of those to come."""
    max_kinds: int = 64
    """Kinds of requests, for each drafter, that a domain remembers."""
    min_probability: float = 0.02
    """Floor of the drafter's score as a prior."""
    max_probability: float = 0.98
    """Ceiling of an acceptance probability. Larger: longer drafts where a drafter has not failed yet."""

    # -- cost: seconds of a forward pass ----------------------------------------------------------------------------

    measured_rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Numbers of rows that are timed, ascending, two at least. More: finer, with less time for each."""
    short_context: int = 64
    """Tokens of context behind which passes of all sizes are timed."""
    long_context: int = 512
    """Tokens of context behind which they are timed again, for the slope. Longer: calibration takes more memory."""
    branched_rows: int = 8
    """Rows of the tree that is timed beside a chain of as many rows, for the cost of a branch."""
    branches: int = 3
    """Branches of that tree."""
    calibration_seconds: float = 1.0
    """Time for calibration at most, once every size has been timed. Longer: less noise in T, a later first draft."""
    calibration_repeats: int = 30
    """Timings of each size after which calibration ends early."""
    observation_weight: float = 0.05
    """Weight of one observed pass against those before. Larger: T follows the machine faster, and its noise too."""
    plain_interval: int = 4
    """Steps without drafts of which one is observed. Larger: less to do where drafts do not pay, T follows later."""
    shared_drift: float = 0.8
    """Share of a correction that goes to all sizes. Larger: sizes that are seldom run follow the others more."""
    max_slowdown: float = 2.0
    """An observed pass counts as at most so many times, and at least one over so many times, what was expected."""

    # -- selection: which nodes are scored --------------------------------------------------------------------------

    step_overhead: float = 3e-4
    """Seconds of a step outside the target's forward pass, until they are known. Larger: longer drafts, as a step
    costs more anyway."""
    drafting_overhead: float = 1e-4
    """Seconds that scoring a request's draft adds to these, until they are known. Larger: fewer drafts are scored."""

    # -- statistics: which drafters are asked -----------------------------------------------------------------------

    decay: float = 0.9
    """Weight of the past in a drafter's profit and in its cost per level. Larger: slower to pause, and to resume."""
    max_waste: float = 0.01
    """Share of a request's time that a drafter without success may take. Larger: shorter pauses, more retries."""
    max_risk: float = 0.005
    """Share of all time that starting new requests with a losing drafter may take. Larger: it is retried sooner."""
    max_pause: int = 1024
    """Steps that a pause lasts at most, and that old losses and gains count for. Larger: recovery may come later."""
    expected_share: float = 0.5
    """Share of the tokens that a request may have which it is expected to have, until others have ended. Larger: the
    encoders of draft models run where they pay for long outputs alone."""
    warmup_steps: int = 16
    """Steps in which a drafter new to the engine is asked whatever it costs. More: first calls distort less."""
    gain_window: int = 200
    """Steps whose average tells what a drafter gains in a step. Larger: steadier, follows the traffic more slowly."""
    gain_noise: float = 1.0
    """Tokens by which the gain of a step varies by chance. Larger: it takes more steps to know that a drafter loses."""
    trial_levels: int = 2
    """Levels that a drafter may propose before the cost of a level is known."""

    # -- ranking: which alternative of ``draft="a/b"`` goes first ---------------------------------------------------

    ranking_decay: float = 0.9
    """Weight of the past in the accepted tokens of an alternative: 0.9 remembers about ten drafts."""
    probe_interval: int = 16
    """Steps after which the alternative that was not asked for longest goes first. Smaller: quicker to recover,
    and more steps spent on alternatives that are worse."""


DEFAULT_SETTINGS = AdaptiveSettings()
