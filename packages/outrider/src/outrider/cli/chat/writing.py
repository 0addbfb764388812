"""Output of an answer as it grows: plain in a pipe, token by token or rendered on a terminal."""

from __future__ import annotations

import time
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from outrider.cli.chat.markdown import Markdown
from outrider.cli.chat.settings import View
from outrider.cli.shared.screen import STYLES, Screen, harmless
from outrider.engine.request import StepOutput

_FRAME = 1 / 25  # seconds between two frames of an unfinished line


class Writer(Protocol):
    """Shows one answer."""

    def show(self, output: StepOutput) -> None:
        """Write one token's text."""
        ...

    def end(self) -> None:
        """Write the remaining text, and end the line."""
        ...


def make_writer(console: Console, view: View) -> Writer:
    """The writer that ``view`` selects and the terminal supports."""
    if view.markdown and console.is_terminal and not console.is_dumb_terminal:
        return MarkdownWriter(console, colour=view.colour)
    return Screen(console.file, colour=view.colour)


class MarkdownWriter:
    """Renders each finished line; the unfinished one is drawn again as it grows."""

    def __init__(self, console: Console, *, colour: bool) -> None:
        self._console, self._colour = console, colour
        self._markdown = Markdown(highlight=not colour)
        self._line = Text()
        self._live = Live(console=console, transient=True, auto_refresh=False)
        self._live.start()
        self._drawn = 0.0

    def show(self, output: StepOutput) -> None:
        first, *others = harmless(output.text).expandtabs(4).split("\n")
        style = STYLES[output.origin] if self._colour else ""
        self._line.append(first, style=style)
        for part in others:
            self._finish_line()
            self._line.append(part, style=style)
        if time.monotonic() - self._drawn > _FRAME:
            self._draw()

    def end(self) -> None:
        if self._line.plain:
            self._finish_line()
        self._live.stop()

    def _draw(self) -> None:
        """Draw the unfinished line, or the end of it that fits the screen."""
        rows = self._markdown.line(self._line, ended=False).rows(self._console.width)
        self._live.update(Text("\n").join(rows[-max(1, self._console.height - 1) :]), refresh=True)
        self._drawn = time.monotonic()

    def _finish_line(self) -> None:
        line = self._markdown.line(self._line)
        self._live.update(Text(), refresh=True)
        if line.wraps:
            self._console.print(Text("\n").join(line.rows(self._console.width)))
        else:
            self._console.print(line.body, soft_wrap=True)  # so that code can be copied verbatim
        self._line = Text()
