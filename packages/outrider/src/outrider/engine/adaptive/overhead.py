"""Seconds of a step outside the target's forward pass: what every step takes, and what drafting adds."""

from __future__ import annotations

from outrider.engine.adaptive.settings import DEFAULT_SETTINGS, AdaptiveSettings


class StepOverhead:
    """Running estimates, from steps that only decoded. What drafters take for a proposal is not part of them."""

    def __init__(self, settings: AdaptiveSettings = DEFAULT_SETTINGS) -> None:
        self._settings = settings
        self._plain: dict[int, float] = {}  # of a step in which no draft was scored, by its requests
        self.drafting = settings.drafting_overhead
        """Seconds more for each request with a draft that is scored: to select, pack, verify, move and count it."""

    def plain(self, requests: int) -> float:
        """Of a step of so many requests without drafts."""
        return self._plain.get(requests, self._settings.step_overhead)

    def observe(self, requests: int, drafted: int, seconds: float) -> None:
        """Learn from a step; ``drafted``: how many of its requests had a draft that was scored.

        A step that took several times as long as expected was disturbed, and counts as twice.
        """
        most, weight = self._settings.max_slowdown, 1 - self._settings.decay
        known = self._plain.get(requests)
        if drafted == 0:
            before = seconds if known is None else known
            self._plain[requests] = before + weight * (min(seconds, most * before) - before)
        elif known is not None:  # else what drafting added cannot be told
            added = min(
                max(0.0, seconds - known) / drafted, most * max(self.drafting, self._settings.drafting_overhead)
            )
            self.drafting += weight * (added - self.drafting)
