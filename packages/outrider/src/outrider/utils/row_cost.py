"""Time of a forward pass by its number of rows, measured while the engine runs, at no cost."""

from __future__ import annotations

WEIGHT = 0.3  # of an observation
_TRIAL_ROWS = 64  # of a first pass
_LEAST_ROWS = 8  # of any: below that a pass of fewer rows hardly takes less
_MOST = 2.0  # times what was expected that a pass counts as: it was disturbed


class RowCost:
    """Seconds that passes have taken by their rows, and so the rows that fit into some seconds.

    A pass of more rows takes longer, and each of its rows less long. So what passes of about ``n`` rows took bounds
    those of any other number from above: ``t`` for fewer rows, ``t rows / n`` for more. A pass that took longer than
    another's bound shows that the other's time is out of date.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, float]] = {}  # rows and seconds, by the power of two that rows are below

    def observe(self, rows: int, seconds: float) -> None:
        """Record one pass of ``rows`` rows that took ``seconds``."""
        own = rows.bit_length()
        for key, (n, t) in self._known.items():
            bound = t * max(1.0, rows / n)
            if key != own and seconds > bound:
                self._known[key] = n, t * (1 + WEIGHT * (min(_MOST, seconds / bound) - 1))
        n, t = self._known.get(own, (rows, seconds))
        self._known[own] = n + WEIGHT * (rows - n), t + WEIGHT * (min(seconds, _MOST * t) - t)

    def rows_within(self, seconds: float) -> int:
        """Rows of a pass that likely takes at most ``seconds``; ``_LEAST_ROWS`` at least."""
        if not self._known:
            return _TRIAL_ROWS
        fitting = [n / t for n, t in self._known.values() if t <= seconds]
        n, t = min(self._known.values())
        return max(_LEAST_ROWS, int(seconds * max(fitting, default=n / t)))
