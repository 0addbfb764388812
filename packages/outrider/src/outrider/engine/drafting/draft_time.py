"""The time that is left for drafting in a step."""

from __future__ import annotations

import math
from collections.abc import Callable


class DraftTime:
    """The deadline for drafting, set when a step begins. Any thread may end drafting at once with ``cut``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = math.inf
        self._asked: dict[str, float] = {}  # when a request last asked for another level

    def begin(self, seconds: float) -> None:
        """A step begins, with ``seconds`` for drafting."""
        self._end = math.inf if seconds == math.inf else self._clock() + seconds
        self._asked.clear()

    def cut(self) -> None:
        """A new request waits for this step: start no further level of a draft."""
        self._end = -math.inf

    def left(self) -> float:
        """The seconds left; infinite without a limit."""
        return self._end if math.isinf(self._end) else self._end - self._clock()

    def has_level(self, request_id: str) -> bool:
        """Whether time is left for another level of a request's draft that takes as long as the last level."""
        if self._end == math.inf:
            return True
        now = self._clock()
        level = now - self._asked.get(request_id, now)
        self._asked[request_id] = now
        return now + level < self._end
