"""An index of segments: which files hold the rows of a text, and which were not used for longest.

::

    root of a domain
      +- 64 rows --- 64 rows --- 64 rows --- 17 rows      a conversation
                        |
                        +------- 64 rows                  another one, that begins alike
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

from outrider.cache.blocks import Digest
from outrider.cache.sessions.segments import SEGMENT, Segment, chain, child_digest, shared

__all__ = ["SegmentIndex", "last_start"]


class SegmentIndex:
    """The segments of one folder, of at most ``limit`` bytes together. Callable from any thread."""

    def __init__(self, limit: int, delete: Callable[[Segment], None]) -> None:
        """``delete``: removes a segment's file."""
        self.limit, self._delete = limit, delete
        self._lock = threading.Lock()
        self._children: dict[Digest, dict[Digest, Segment]] = {}
        self._states: dict[Digest, Segment] = {}  # by the digest of their rows
        self._bytes = 0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._bytes

    def find(self, tokens: Sequence[int], salt: str) -> tuple[list[Segment], int]:
        """The segments of the longest known beginning of ``tokens``, and its length, which may end within the last."""
        found: list[Segment] = []
        parents = chain(tokens, salt)
        with self._lock:
            for parent, digest in pairwise(parents):
                whole = self._children.get(parent, {}).get(digest)
                if whole is None:
                    break
                found.append(whole)
            start = SEGMENT * len(found)
            children = self._children.get(parents[len(found)], {}).values()
            best = max(children, key=lambda each: shared(each, tokens), default=None)
            if best is None or not (more := shared(best, tokens)):
                return found, start
        return [*found, best], start + more

    def states(self, tokens: Sequence[int], salt: str, most: int) -> list[Segment]:
        """States of the first rows of ``tokens``, at most ``most`` of them, the longest first."""
        found: list[Segment] = []
        parents = chain(tokens[:most], salt)
        with self._lock:
            for end in sorted({each.end for each in self._states.values() if each.end <= most}, reverse=True):
                start = last_start(end)
                held = self._states.get(child_digest(parents[start // SEGMENT], tokens[start:end]))
                if held is not None:
                    found.append(held)
        return found

    def knows(self, segment: Segment) -> bool:
        """Whether its contents are kept: by a segment of its own, or by one of rows that goes on where it ends."""
        with self._lock:
            if segment.is_state:
                return segment.digest in self._states
            children = self._children.get(segment.parent, {})
            return segment.digest in children or any(
                each.tokens[: len(segment.tokens)] == segment.tokens for each in children.values()
            )

    def add(self, *segments: Segment) -> None:
        """Enter segments, whose files are written; those that were not used for longest make room."""
        with self._lock:
            for segment in segments:
                self._enter(segment)
            self._make_room()

    def remove(self, segment: Segment) -> None:
        """Forget a segment, and delete its file."""
        with self._lock:
            self._remove(segment)

    def _enter(self, segment: Segment) -> None:
        if segment.is_state:
            kind = self._states
        else:
            kind = self._children.setdefault(segment.parent, {})
            shorter = [each for each in kind.values() if segment.tokens[: len(each.tokens)] == each.tokens]
            for each in shorter:  # its rows are the first of this one's
                self._remove(each, keep=segment)
        if segment.digest not in kind:
            self._bytes += segment.size
        kind[segment.digest] = segment

    def _remove(self, segment: Segment, keep: Segment | None = None) -> None:
        kind = self._states if segment.is_state else self._children.get(segment.parent, {})
        if kind.pop(segment.digest, None) is not None:
            self._bytes -= segment.size
        if not segment.is_state and not kind and keep is None:
            self._children.pop(segment.parent, None)
        if keep is None or keep.digest != segment.digest:
            self._delete(segment)

    def _make_room(self) -> None:
        if self._bytes <= self.limit:
            return
        rows = [each for kind in self._children.values() for each in kind.values()]
        for each in sorted([*rows, *self._states.values()], key=lambda each: (each.used, -each.end)):
            if self._bytes <= self.limit * 0.9:  # some at once: sorting takes time
                break
            self._remove(each)


def last_start(end: int) -> int:
    """The first row of the segment whose last row is ``end - 1``."""
    return max(0, end - 1) // SEGMENT * SEGMENT
