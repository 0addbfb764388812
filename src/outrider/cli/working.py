"""Progress of long work on stderr: a bar with the time left on a terminal, and now and then a line in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from outrider.utils.progress import duration

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_S = 30.0
"""Seconds between two lines in a log, at least. Work that is done before says nothing."""


class Working(Protocol):
    """Called with a word on each piece of work that is done; ``expect`` says how many there are in all."""

    def __call__(self, what: str) -> None: ...

    def expect(self, total: int) -> None:
        """There are ``total`` pieces, those that are done included."""


class Bar:
    """On a terminal."""

    def __init__(self, bar: Progress, task: TaskID, description: str) -> None:
        self._bar, self._task, self._description = bar, task, description

    def __call__(self, what: str) -> None:
        self._bar.update(self._task, advance=1, description=f"{self._description}: {what}")

    def expect(self, total: int) -> None:
        self._bar.update(self._task, total=total)


class Lines:
    """In a log."""

    def __init__(self, description: str, total: int | None) -> None:
        self._description, self._total, self._done = description, total, 0
        self._began = self._said = time.monotonic()

    def __call__(self, what: str) -> None:
        self._done += 1
        now = time.monotonic()
        if now - self._said < LINE_S:
            return
        self._said = now
        of = left = ""
        if self._total:
            of = f" of {self._total}"
            seconds = (now - self._began) / self._done * max(0, self._total - self._done)
            left = f", about {duration(seconds)} left"
        gone = duration(now - self._began)
        print(f"{self._description}: {self._done}{of} done after {gone}{left}: {what}", file=sys.stderr, flush=True)

    def expect(self, total: int) -> None:
        self._total = total


@contextmanager
def working(description: str, total: int | None = None) -> Iterator[Working]:
    """Shows pieces done of ``total``, or of what is expected later, the time that went by and the time left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines(description, total)
        return
    what = TextColumn("{task.description}", table_column=Column(no_wrap=True, ratio=1))
    left = TimeRemainingColumn(table_column=Column(no_wrap=True))
    columns = [what, BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(), left, TextColumn("left")]
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        yield Bar(bar, bar.add_task(description, total=total), description)
