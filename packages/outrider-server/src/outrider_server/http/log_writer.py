"""Writes the log on a thread of its own, so that nobody waits for whoever reads it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

HELD = 4 << 20  # characters that may wait to be written; lines beyond that are left out and counted
PATIENCE = 1.0  # seconds that an exit waits for them


class LogWriter(logging.Handler):
    """To stderr. A pipe that nobody empties would stop the event loop in the middle of a line.

    Written past Python's own buffer: a thread that waits with its lock would abort the interpreter's exit.
    """

    def __init__(self) -> None:
        super().__init__()
        self._write = _writer()
        self._lines: deque[str] = deque()
        self._held = self._left_out = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:  # noqa: BLE001  as every handler of the standard library does
            self.handleError(record)
            return
        with self._changed:
            if self._held + len(line) > HELD:
                self._left_out += 1
                return
            self._lines.append(line)
            self._held += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="outrider-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all is written, but not for ever."""
        end = time.monotonic() + PATIENCE
        with self._changed:
            while self._held and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._lines:
                    self._changed.wait()
                line = self._lines.popleft()
                left_out, self._left_out = self._left_out, 0
            with contextlib.suppress(OSError, ValueError):  # a full disk, or no reader any more
                self._write(line)
                if left_out:
                    self._write(f"{left_out} lines were left out here: whoever reads the log was too slow\n")
            with self._changed:
                self._held -= len(line)
                self._changed.notify_all()


def _writer() -> Callable[[str], object]:
    """What writes a text to stderr, whatever that is."""
    try:
        number = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # there is none, or it is no file
        return lambda text: sys.stderr and sys.stderr.write(text)

    def write(text: str) -> None:
        data = text.encode(errors="backslashreplace")
        while data:
            data = data[os.write(number, data) :]

    return write
