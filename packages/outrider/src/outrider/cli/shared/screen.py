"""Display of tokens and statistics on a terminal, and in a pipe."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import IO

from rich.console import Console
from rich.text import Text

from outrider.engine.request import Request, StepOutput
from outrider.output import statistics

STYLES = {"accepted": "green", "recovered": "yellow", "bonus": "cyan", "target": ""}
"""Accepted draft tokens; the target's token instead of a rejected draft; its token after an accepted draft."""


class Screen:
    """Writes text to stdout, on a terminal coloured by each token's origin."""

    def __init__(self, file: IO[str] | None = None, *, colour: bool = True) -> None:
        self._colour = colour
        self._console = Console(file=file, highlight=False, soft_wrap=True, emoji=False, markup=False)

    def show(self, output: StepOutput) -> None:
        """Write one token's text."""
        if not self._console.is_terminal:
            self._console.file.write(output.text)
            self._console.file.flush()
        elif output.text:
            self._console.print(
                Text(harmless(output.text), style=STYLES[output.origin] if self._colour else ""), end=""
            )

    def end(self) -> None:
        self._console.print()


def harmless(text: str) -> str:
    """Text without control characters other than line breaks and tabs, so that a model cannot steer a terminal."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)


def legend() -> Text:
    """A legend of the colours."""
    parts: Iterable[tuple[str, str] | str] = (
        ("accepted draft", STYLES["accepted"]),
        " · ",
        ("recovered", STYLES["recovered"]),
        " · ",
        ("bonus", STYLES["bonus"]),
        " · plain",
    )
    return Text.assemble(*parts)


def summary(request: Request) -> str:
    """One line of statistics of a request."""
    stats, draft = request.stats, request.speculation
    line = statistics(stats, "" if draft.draft == "none" else f"{draft.draft}, K={draft.spec_length}")
    if not stats.exact:
        line += f" · not exact ({draft.verifier})"
    if stats.draft_error:
        line += f" · draft switched off ({stats.draft_error})"
    if not request.params.greedy:
        line += f" · seed {request.seed}"
    return line


def stderr() -> Console:
    """A console for notes; the output itself goes to stdout."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    # Rows are for people at a terminal of known width; a program reads lines.
    console.soft_wrap = not console.is_terminal or console.is_dumb_terminal
    return console


def report(request: Request) -> None:
    """Print the legend and the line of statistics to stderr."""
    console = stderr()
    if request.speculation.draft != "none" and console.is_terminal and not console.no_color:
        console.print(legend())
    console.print(summary(request), style="dim")
