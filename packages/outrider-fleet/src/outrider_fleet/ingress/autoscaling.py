"""How many replicas a load asks for. No I/O, and no clock but the one it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UP_AFTER, DOWN_AFTER = 1.0, 30.0  # seconds for which more, or fewer, must have been wanted
BUSY, IDLE = 0.8, 0.4  # share of places taken above which more, and below which fewer, are wanted
SLOW = 0.5  # tokens a second of a sequence, as a share of the best ever seen, below which more are wanted


@dataclass(frozen=True)
class Demand:
    """The load of a replica, as it reports it."""

    sequences: int  # running or waiting
    places: int  # that can run at once
    tokens: int  # ever committed


class Autoscaler:
    """Wants more replicas while places are short or every sequence has become slow, fewer when many are free."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._since: tuple[int, float] = (0, 0.0)  # the direction that is wanted, and since when
        self._last: tuple[float, int] | None = None  # when, and how many tokens there were
        self._best = 0.0  # tokens a second of one sequence

    def wanted(self, demands: Sequence[Demand], now: float) -> int:
        """The wanted number of replicas, given the ready ones; ``now`` in seconds."""
        count = len(demands)
        if not count:
            return self._least
        taken = sum(demand.sequences for demand in demands)
        share = taken / sum(demand.places for demand in demands)
        slow = self._is_slow(sum(demand.tokens for demand in demands), taken, now)
        direction = 1 if share > BUSY or (slow and share > IDLE) else -1 if _share_without_one(demands) < IDLE else 0
        if direction != self._since[0]:
            self._since = (direction, now)
        if not direction or now - self._since[1] < (UP_AFTER if direction > 0 else DOWN_AFTER):
            return min(self._most, max(self._least, count))
        self._since = (0, now)
        step = max(1, round(count * (share - 1))) if direction > 0 else -1
        return min(self._most, max(self._least, count + step))

    def _is_slow(self, tokens: int, sequences: int, now: float) -> bool:
        last, self._last = self._last, (now, tokens)
        if last is None or now <= last[0] or not sequences or tokens < last[1]:
            return False
        speed = (tokens - last[1]) / (now - last[0]) / sequences
        self._best = max(self._best, speed)
        return speed < SLOW * self._best


def _share_without_one(demands: Sequence[Demand]) -> float:
    """The share of places that would be taken if there were one replica fewer."""
    places = sum(demand.places for demand in demands) - demands[-1].places
    return sum(demand.sequences for demand in demands) / places if places else float("inf")
