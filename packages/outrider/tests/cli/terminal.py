"""A terminal for a program under test: a real pseudo-terminal, and the screen that a person would see."""

from __future__ import annotations

import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from fcntl import ioctl
from types import TracebackType
from typing import Self

import pyte

ENTER, UP, ALT_ENTER, CTRL_C, CTRL_D = "\r", "\x1b[A", "\x1b\r", "\x03", "\x04"
_PATIENCE = 120.0  # seconds for something to appear; a busy machine may need many to load a model


class Terminal:
    """Runs ``command`` on a pseudo-terminal. Use it in ``with``: what still runs at the end is killed."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, columns: int = 80, rows: int = 40
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.status: int | None = None
        settings = {"TERM": "xterm-256color", **(env or {})}
        self._ready = b">>> " if settings["TERM"] == "dumb" else b"\x1b[?2004h"  # what each new prompt begins with
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execvpe(command[0], list(command), {**os.environ, **settings})
        ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

    def send(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def text(self) -> str:
        """What is on the screen, without blanks at the ends."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def wait_until(self, condition: Callable[[], bool], what: object) -> str:
        """Read until ``condition`` holds. Returns the screen."""
        end = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > end or not self._read(end - time.monotonic()):
                raise AssertionError(f"never saw {what!r} on:\n{self.text()}")
        return self.text()

    def wait_for(self, *texts: str, times: int = 1) -> str:
        """Read until the screen shows each of ``texts``, ``times`` times. Returns the screen."""
        return self.wait_until(lambda: all(self.text().count(text) >= times for text in texts), texts)

    def wait_for_prompt(self) -> str:
        """Read until the cursor stands behind an empty prompt."""
        return self.wait_until(self._at_prompt, "an empty prompt")

    def ask(self, text: str) -> str:
        """Type a line, and read until there is a new prompt below it."""
        before = self.raw.count(self._ready)
        self.send(text + ENTER)
        self.wait_until(lambda: self.raw.count(self._ready) > before and self._at_prompt(), "a new prompt")
        return self.text()

    def _at_prompt(self) -> bool:
        row, column = self.screen.cursor.y, self.screen.cursor.x
        return bool(column == 4 and self.screen.display[row].startswith(">>> "))

    def wait(self) -> int:
        """Read to the end of the program; its exit code."""
        end = time.monotonic() + _PATIENCE
        while self._read(end - time.monotonic()):
            pass
        if time.monotonic() > end:
            raise AssertionError(f"still running, with this on the screen:\n{self.text()}")
        _, status = os.waitpid(self._pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def _read(self, seconds: float) -> bool:
        """Take what was written; False at the end of the program."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            chunk = os.read(self._fd, 65536)
        except OSError:  # how Linux reports the end of a terminal
            return False
        self.raw += chunk
        self._stream.feed(chunk)
        if b"\x1b[6n" in chunk:  # "where is the cursor?", to which a terminal replies
            self.send(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")
        return bool(chunk)
