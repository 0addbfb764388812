"""Progress in a notebook: one line of HTML that changes in place, without widgets."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

_REDRAW = 0.2  # seconds


def notebook_display() -> Any:
    """IPython's ``display`` if this is the kernel of a notebook, else None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or type(shell).__name__ != "ZMQInteractiveShell":
        return None
    from IPython.display import display

    return display


class _Line:
    def __init__(self, html: str) -> None:
        self._html = html

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return ""


@contextmanager
def notebook_bar(display: Any, description: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Yields a function to call with the number of pieces done so far, and a word on them."""
    began = time.perf_counter()
    drawn = 0.0

    def line(done: int, word: str) -> _Line:
        seconds = time.perf_counter() - began
        left = f", {seconds / done * (total - done):.0f} s left" if 0 < done < total else ""
        words = f"{description}: {done} of {total}, {seconds:.1f} s{left}{', ' + word if word else ''}"
        return _Line(f'<progress value="{done}" max="{total}"></progress> {escape(words)}')

    handle = display(line(0, ""), display_id=True)

    def show(done: int, word: str) -> None:
        nonlocal drawn
        if done >= total or time.perf_counter() - drawn >= _REDRAW:
            drawn = time.perf_counter()
            handle.update(line(done, word))

    yield show
