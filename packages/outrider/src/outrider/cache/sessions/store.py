"""A folder of segments: an index of them, a thread that writes, and a limit of bytes.

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
from pathlib import Path
from typing import Any

from outrider.cache.blocks import Digest
from outrider.cache.sessions.files import PLAIN, SEALED, SegmentFiles, is_finite
from outrider.cache.sessions.index import SegmentIndex, last_start
from outrider.cache.sessions.sealing import Sealer, domain_id
from outrider.cache.sessions.segments import SEGMENT, Segment, chain, child_digest
from outrider.cache.sessions.slots import SavedSlots
from outrider.errors import ConfigError, ModelFormatError
from outrider.utils.system import read_ahead

__all__ = ["SessionStore"]

logger = logging.getLogger(__name__)

_MOST_WAITING = 256 << 20  # bytes that wait to be written; what comes then must come again

Arrays = Sequence[Any]
Like = Sequence[tuple[tuple[int, ...], Any]]


class SessionStore:
    """Segments of one model in one folder. The engine's thread saves and finds, a thread of the store's writes."""

    def __init__(self, folder: Path, model: str, limit: int, key: bytes | None = None) -> None:
        """
        Args:
            folder: is made if it is missing, for this user alone.
            model: identifies the model with everything that a row's bits depend on.
            limit: bytes of the files of this model.
            key: encrypts the files; those of this model that are not encrypted are removed.

        Raises ConfigError if the folder cannot be written.
        """
        sealer = None if key is None else Sealer(key, model)
        plain = folder / model[:32]
        self.folder = plain if sealer is None else folder / f"{model[:32]}-{sealer.key_id}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = self.folder / f".{os.getpid()}"
            probe.touch(0o600)
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"session_dir={str(folder)!r} cannot be written: {error.strerror or error}") from None
        self._files = SegmentFiles(self.folder, model, sealer)
        self._index = SegmentIndex(limit, self._delete)
        self.slots = SavedSlots(self._files)
        self.find, self.states = self._index.find, self._index.states
        self._lock, self._waiting = threading.Lock(), 0
        self._jobs: queue.Queue[tuple[Segment, Arrays] | None] = queue.Queue()
        if sealer is not None:
            for path in [*plain.glob(f"*{PLAIN}"), *plain.glob("*.json")]:
                path.unlink(missing_ok=True)
        self._scan()
        self._remove_other_models()
        self._thread = threading.Thread(target=self._write_all, name="outrider-sessions", daemon=True)
        self._thread.start()
        self.close = weakref.finalize(self, _end, self._jobs, self._thread)
        """Write what waits, and end the thread. A program that ends without it does so too."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._index.size

    def read(self, segment: Segment, like: Like) -> Arrays | None:
        """A segment's arrays; None, and the file is removed, if it cannot be used. Callable from any thread."""
        try:
            arrays = self._files.read_arrays(segment, like)
        except ModelFormatError as error:
            logger.warning("a saved session cannot be used, its tokens are read again: %s", error)
            self._index.remove(segment)
            return None
        segment.used = time.time()
        with suppress(OSError):
            os.utime(self._files.path(segment))
        return arrays

    def read_ahead(self, segment: Segment) -> None:
        """Ask the system to have a segment's file in memory soon. Callable from any thread."""
        read_ahead(self._files.path(segment))

    def forget(self, segment: Segment) -> None:
        """Remove a segment, and its file. Callable from any thread."""
        self._index.remove(segment)

    # -- saving ----------------------------------------------------------------------------------------------------

    def save(
        self,
        start: int,
        own: Sequence[int],
        parent: Digest,
        rows: Callable[[int, int], Arrays],
        salt: str = "",
        may_copy: bool = True,
    ) -> Digest | None:
        """Keep the rows of ``own``, at most ``SEGMENT`` tokens from ``start`` on.

        Args:
            rows: ``rows(start, end)`` gives a copy of them. It is not kept if numbers among them are not finite.
            salt: of their domain.
            may_copy: whether ``rows`` may be called.

        Returns the segment's digest; None if its rows must be copied, and may not be, or too much waits to be written.
        """
        segment = Segment(child_digest(parent, own), parent, start, tuple(own), domain=domain_id(salt))
        if not self._index.knows(segment):
            if not may_copy or self._waiting > _MOST_WAITING:
                return None
            self._add(segment, rows(start, segment.end))
        return segment.digest

    def save_state(self, tokens: Sequence[int], salt: str, state: Callable[[], Arrays]) -> None:
        """Keep the recurrent state of all rows of ``tokens``."""
        start = last_start(len(tokens))
        parent, own = chain(tokens, salt)[start // SEGMENT], tuple(tokens[start:])
        digest = child_digest(parent, own)
        segment = Segment(digest, parent, start, own, is_state=True, domain=domain_id(salt))
        if not self._index.knows(segment):
            self._add(segment, state())

    def _add(self, segment: Segment, arrays: Arrays) -> None:
        size = sum(array.nbytes for array in arrays)
        with self._lock:
            if self._waiting > _MOST_WAITING or not self._thread.is_alive():
                return
            self._waiting += size
        self._jobs.put((segment, arrays))

    # -- the thread ------------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            segment, arrays = job
            try:
                if not all(map(is_finite, arrays)):
                    continue
                segment.size, segment.used = self._files.write(segment, arrays), time.time()
                self._index.add(segment)
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

    # -- files that are there already ------------------------------------------------------------------------------

    def _scan(self) -> None:
        for path in self.folder.glob("*.part"):  # of a process that was killed
            path.unlink(missing_ok=True)
        found: list[Segment] = []
        for path in self._files.paths():
            try:
                found.append(self._files.read_head(path))
            except ModelFormatError:
                with suppress(OSError):
                    path.unlink()
        self._index.add(*found)

    def _remove_other_models(self) -> None:
        """Of models, keys and versions that are not in use, keep what the limit leaves."""
        found = [*self.folder.parent.glob(f"*/*{PLAIN}"), *self.folder.parent.glob(f"*/*{SEALED}")]
        files = [path for path in found if path.parent != self.folder]
        total, limit = self.size + sum(path.stat().st_size for path in files), self._index.limit
        for path in sorted(files, key=lambda path: path.stat().st_mtime):
            if total <= limit:
                return
            total -= path.stat().st_size
            path.unlink(missing_ok=True)

    def _delete(self, segment: Segment) -> None:
        with suppress(OSError):
            self._files.path(segment).unlink()


def _end(jobs: queue.Queue[Any], thread: threading.Thread) -> None:
    jobs.put(None)
    thread.join()
