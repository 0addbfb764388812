"""Progress of long work on stderr: a bar with the time left on a terminal, nothing in a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Working:
    """Called with a word on each piece of work that is done; ``expect`` says how many there are in all."""

    def __init__(self, bar: Progress, task: TaskID, description: str) -> None:
        self._bar, self._task, self._description = bar, task, description

    def __call__(self, what: str) -> None:
        self._bar.update(self._task, advance=1, description=f"{self._description}: {what}")

    def expect(self, total: int) -> None:
        """There are ``total`` pieces, those that are done included."""
        self._bar.update(self._task, total=total)


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
    what = TextColumn("{task.description}", table_column=Column(no_wrap=True, ratio=1))
    left = TimeRemainingColumn(table_column=Column(no_wrap=True))
    columns = [what, BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(), left, TextColumn("left")]
    with Progress(*columns, console=console, transient=True, expand=True, disable=not console.is_terminal) as bar:
        yield Working(bar, bar.add_task(description, total=total), description)
