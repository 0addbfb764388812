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

    def __call__(self, what: str, count: int = 1) -> None:
        """``count`` pieces more are done."""

    def expect(self, total: int, done: int = 0) -> None:
        """There are ``total`` pieces, those that are done included; ``done`` of them were before this work began."""


class Bar:
    """On a terminal."""

    def __init__(self, bar: Progress, task: TaskID, description: str) -> None:
        self._bar, self._task, self._description = bar, task, description

    def __call__(self, what: str, count: int = 1) -> None:
        self._bar.update(self._task, advance=count, description=f"{self._description}: {what}")

    def expect(self, total: int, done: int = 0) -> None:
        self._bar.update(self._task, total=total)
        if done:
            self._bar.reset(self._task, total=total, completed=done)  # so that they do not count as fast


class Lines:
    """In a log."""

    def __init__(self, description: str, total: int | None) -> None:
        self._description, self._total, self._done, self._before = description, total, 0, 0
        self._began = self._said = time.monotonic()

    def __call__(self, what: str, count: int = 1) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._said < LINE_S:
            return
        self._said = now
        of = left = ""
        if self._total:
            of = f" of {self._total:,}"
            new = self._done - self._before
            if new:
                left = f", about {duration((now - self._began) / new * max(0, self._total - self._done))} left"
        gone = duration(now - self._began)
        print(f"{self._description}: {self._done:,}{of} done after {gone}{left}: {what}", file=sys.stderr, flush=True)

    def expect(self, total: int, done: int = 0) -> None:
        self._total = total
        if done:
            self._done = self._before = done
            self._began = time.monotonic()


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
