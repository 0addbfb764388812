"""A replica's cache in a simulation: tokens of running requests, and prefixes for later requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from outrider_lab.fleet_planning.workload import Segment


class PrefixCache:
    """The number of tokens in a cache. Unused blocks are dropped one by one, the least recently used first.

    ::

        capacity  [ own: rows of running requests | shared: published segments, used or kept for later | free ]

    A segment is dropped from its end, so that a prefix stays longer than its continuations.
    """

    def __init__(self, capacity: int, block: int, *, reuse: bool = True) -> None:
        self.capacity, self._block, self._reuse = capacity, block, reuse
        self._held: OrderedDict[object, int] = OrderedDict()  # tokens, the least recently used first
        self._users: dict[object, int] = {}
        self.own = 0
        self.shared = 0

    @property
    def free(self) -> int:
        """Tokens of room without dropping blocks."""
        return self.capacity - self.own - self.shared

    def held(self) -> Iterator[Segment]:
        """The cached segments, and the number of their tokens."""
        return iter(self._held.items())

    def match(self, segments: Sequence[Segment]) -> int:
        """The number of leading prompt tokens in the cache, in whole blocks."""
        found = 0
        for name, tokens in segments:
            here = self._held.get(name, 0)
            if here < tokens // self._block * self._block:
                found += here
                break
            found += tokens
        return found // self._block * self._block

    def pin(self, segments: Sequence[Segment]) -> None:
        """Use the cached part of a request's prompt; it is not dropped until ``unpin``."""
        for name, _ in reversed(segments):
            self._users[name] = self._users.get(name, 0) + 1
            if name in self._held:
                self._held.move_to_end(name)

    def unpin(self, segments: Sequence[Segment]) -> None:
        for name, _ in reversed(segments):
            left = self._users[name] - 1
            if left:
                self._users[name] = left
            else:
                del self._users[name]
            if name in self._held:
                self._held.move_to_end(name)

    def publish(self, segments: Sequence[Segment]) -> int:
        """Offer a request's tokens for reuse, in whole blocks; return the number that moved from own to shared."""
        moved = 0
        if self._reuse:
            for name, tokens in segments:
                grown = tokens // self._block * self._block - self._held.get(name, 0)
                if grown > 0:
                    self._held[name] = self._held.get(name, 0) + grown
                    moved += grown
        self.shared += moved
        self.own -= moved
        return moved

    def make_room(self, tokens: int) -> bool:
        """Drop unused blocks until ``tokens`` are free; False if the room does not suffice."""
        missing = tokens - self.free
        looked = 0
        while missing > 0 and looked < len(self._held):
            name = next(iter(self._held))
            if name in self._users:
                self._held.move_to_end(name)
                looked += 1
                continue
            here = self._held[name]
            gone = min(here, -(-missing // self._block) * self._block)
            self.shared -= gone
            missing -= gone
            if gone == here:
                del self._held[name]
            else:
                self._held[name] = here - gone
        return missing <= 0

    def check(self) -> None:
        """Raise AssertionError unless own and shared tokens fit, and the segments hold the shared ones."""
        if self.shared != sum(self._held.values()) or min(self.own, self.free) < 0:
            raise AssertionError(
                f"{self.own} own and {self.shared} shared tokens of {self.capacity}, but segments hold "
                f"{sum(self._held.values())}"
            )
