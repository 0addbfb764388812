"""Ctrl-C that waits for a moment at which work can be left in order."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class CtrlC:
    """While it lasts, the first Ctrl-C is noted in ``pressed``; a second one raises ``KeyboardInterrupt``.

    An exception at any moment could leave an engine's caches, or weights in training, half changed.
    """

    def __init__(self, on_press: Callable[[], None] = lambda: None) -> None:
        self.pressed = False
        self._on_press = on_press

    def __enter__(self) -> Self:
        self._before: Any = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True
        self._on_press()
