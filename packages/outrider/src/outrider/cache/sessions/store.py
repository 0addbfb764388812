"""A folder of segments: an index of them, a thread that writes, and a limit of bytes.

::

    root of a domain
      +- 64 rows --- 64 rows --- 64 rows --- 17 rows      a conversation
                        |
                        +------- 64 rows                  another one, that begins alike

Files are written by a thread, while a sequence grows and at its end, and read when another one begins as theirs do. The
least recently used ones are removed when there are more bytes than the limit.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from outrider.cache.blocks import Digest
from outrider.cache.sessions.segments import (
    SEGMENT,
    Segment,
    chain,
    child_digest,
    read_arrays,
    read_head,
    write_segment,
)
from outrider.errors import ConfigError, ModelFormatError

__all__ = ["SessionStore"]

logger = logging.getLogger(__name__)

_MOST_WAITING = 256 << 20  # bytes that wait to be written; what comes then is not kept

Arrays = Sequence[Any]
Like = Sequence[tuple[tuple[int, ...], Any]]


class SessionStore:
    """Segments of one model in one folder. The engine's thread saves and finds, a thread of the store's writes."""

    def __init__(self, folder: Path, model: str, limit: int) -> None:
        """
        Args:
            folder: is made if it is missing, for this user alone.
            model: identifies the model with everything that a row's bits depend on.
            limit: bytes of the files of this model.

        Raises ConfigError if the folder cannot be written.
        """
        self.folder, self.limit, self._model = folder / model[:32], limit, model
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = self.folder / f".{os.getpid()}"
            probe.touch(0o600)
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"session_dir={str(folder)!r} cannot be written: {error.strerror or error}") from None
        self._lock = threading.Lock()
        self._children: dict[Digest, dict[Digest, Segment]] = {}
        self._states: dict[Digest, Segment] = {}  # by the digest of their rows
        self._bytes = self._waiting = 0
        self._jobs: queue.Queue[tuple[Segment, Arrays] | None] = queue.Queue()
        self._scan()
        self._remove_other_models()
        self._thread = threading.Thread(target=self._write_all, name="outrider-sessions", daemon=True)
        self._thread.start()
        self.close = weakref.finalize(self, _end, self._jobs, self._thread)
        """Write what waits, and end the thread. A program that ends without it does so too."""

    # -- finding ---------------------------------------------------------------------------------------------------

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
                start = _last_start(end)
                held = self._states.get(child_digest(parents[start // SEGMENT], tokens[start:end]))
                if held is not None:
                    found.append(held)
        return found

    def read(self, segment: Segment, like: Like) -> Arrays | None:
        """A segment's arrays; None, and the file is removed, if it cannot be used."""
        try:
            arrays = read_arrays(self.folder / segment.file_name, segment, self._model, like)
        except ModelFormatError as error:
            logger.warning("a saved session cannot be used, its tokens are read again: %s", error)
            with self._lock:
                self._remove(segment)
            return None
        segment.used = time.time()
        with suppress(OSError):
            os.utime(self.folder / segment.file_name)
        return arrays

    # -- saving ----------------------------------------------------------------------------------------------------

    def save(self, start: int, own: Sequence[int], parent: Digest, rows: Callable[[int, int], Arrays | None]) -> Digest:
        """Keep the rows of ``own``, at most ``SEGMENT`` tokens from ``start`` on; returns the segment's digest.

        ``rows(start, end)`` gives a copy of them, or None where they cannot be kept.
        """
        segment = Segment(child_digest(parent, own), parent, start, tuple(own))
        if not self._knows(segment) and (arrays := rows(start, segment.end)) is not None:
            self._add(segment, arrays)
        return segment.digest

    def save_state(self, tokens: Sequence[int], salt: str, state: Callable[[], Arrays]) -> None:
        """Keep the recurrent state of all rows of ``tokens``."""
        start = _last_start(len(tokens))
        parent, own = chain(tokens, salt)[start // SEGMENT], tuple(tokens[start:])
        segment = Segment(child_digest(parent, own), parent, start, own, is_state=True)
        with self._lock:
            known = segment.digest in self._states
        if not known:
            self._add(segment, state())

    def _knows(self, segment: Segment) -> bool:
        """Whether rows are kept: by their own segment, or by one that goes on where it ends."""
        with self._lock:
            children = self._children.get(segment.parent, {})
            known = segment.digest in children or any(
                each.tokens[: len(segment.tokens)] == segment.tokens for each in children.values()
            )
        return known

    def _add(self, segment: Segment, arrays: Arrays) -> None:
        size = sum(array.nbytes for array in arrays)
        with self._lock:
            if self._waiting + size > _MOST_WAITING or not self._thread.is_alive():
                return
            self._waiting += size
        self._jobs.put((segment, arrays))

    # -- the thread ------------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            segment, arrays = job
            try:
                segment.size, segment.used = write_segment(self.folder, segment, arrays, self._model), time.time()
                with self._lock:
                    self._enter(segment)
                    self._make_room()
            except OSError as error:
                logger.warning("a session could not be saved in %s: %s", self.folder, error.strerror or error)
            finally:
                with self._lock:
                    self._waiting -= sum(array.nbytes for array in arrays)
                self._jobs.task_done()
        self._jobs.task_done()

    def flush(self) -> None:
        """Wait until all that was saved is written."""
        self._jobs.join()

    # -- the index, under the lock ---------------------------------------------------------------------------------

    def _scan(self) -> None:
        for path in self.folder.glob("*.part"):  # of a process that was killed
            path.unlink(missing_ok=True)
        for path in self.folder.glob("*.safetensors"):
            try:
                self._enter(read_head(path, self._model))
            except ModelFormatError:
                with suppress(OSError):
                    path.unlink()
        self._make_room()

    def _remove_other_models(self) -> None:
        """Of models and versions that are not in use, keep what the limit leaves."""
        files = [path for path in self.folder.parent.glob("*/*.safetensors") if path.parent != self.folder]
        total = self._bytes + sum(path.stat().st_size for path in files)
        for path in sorted(files, key=lambda path: path.stat().st_mtime):
            if total <= self.limit:
                return
            total -= path.stat().st_size
            path.unlink(missing_ok=True)

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
            with suppress(OSError):
                (self.folder / segment.file_name).unlink()

    def _make_room(self) -> None:
        if self._bytes <= self.limit:
            return
        rows = [each for kind in self._children.values() for each in kind.values()]
        for each in sorted([*rows, *self._states.values()], key=lambda each: (each.used, -each.end)):
            if self._bytes <= self.limit * 0.9:  # some at once: sorting takes time
                break
            self._remove(each)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._bytes


def _end(jobs: queue.Queue[Any], thread: threading.Thread) -> None:
    jobs.put(None)
    thread.join()


def shared(segment: Segment, tokens: Sequence[int]) -> int:
    """How many of a segment's rows are those of ``tokens``, if all rows before it are."""
    theirs = tokens[segment.start : segment.end]
    return next((i for i, (a, b) in enumerate(zip(segment.tokens, theirs, strict=False)) if a != b), len(theirs))


def _last_start(end: int) -> int:
    """The first row of the segment whose last row is ``end - 1``."""
    return max(0, end - 1) // SEGMENT * SEGMENT
