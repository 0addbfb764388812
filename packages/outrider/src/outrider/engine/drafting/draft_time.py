"""How much of a step's time is left for drafts."""

from __future__ import annotations

import math
from collections.abc import Callable


class DraftTime:
    """Drafts end at a moment that is set when a step begins. It may be set to now from any thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = math.inf
        self._asked: dict[str, float] = {}  # when a request last asked for another level

    def begin(self, seconds: float) -> None:
        """A step begins, with so many seconds for drafts."""
        self._end = math.inf if seconds == math.inf else self._clock() + seconds
        self._asked.clear()

    def cut(self) -> None:
        """Somebody has come who waits for this step: no further level begins."""
        self._end = -math.inf

    def left(self) -> float:
        """Seconds; infinite where nobody waits."""
        return self._end if math.isinf(self._end) else self._end - self._clock()

    def has_level(self, request_id: str) -> bool:
        """Whether there is time for another level of a request's draft, if that takes as long as the one before."""
        if self._end == math.inf:
            return True
        now = self._clock()
        level = now - self._asked.get(request_id, now)
        self._asked[request_id] = now
        return now + level < self._end
