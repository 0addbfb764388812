"""Progress for long jobs: a bar with the time left on a terminal or in a notebook, nothing anywhere else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def progress_bar(description: str, total: int | None, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function to call with the number of bytes done since the last call. ``total=None``: not known."""
    if not show:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = [TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()]
    if total is not None:
        columns[2:] = [DownloadColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("left")]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def work_bar(description: str, total: int, *, show: bool) -> Iterator[Callable[[int, str], None]]:
    """Yields a function to call with the number of pieces done so far, and a word on them."""
    if not show:
        yield lambda done, word: None
        return
    from outrider.utils.notebook import notebook_bar, notebook_display

    display = notebook_display()
    if display is not None:
        with notebook_bar(display, description, total) as tell:
            yield tell
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    left = [TimeRemainingColumn(), TextColumn("left"), TextColumn("{task.fields[word]}")]
    with Progress(*columns, *left, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total, word="")
        yield lambda done, word: bar.update(task, completed=done, word=word)


@contextmanager
def growth(folder: Path, pattern: str, tell: Callable[[int], None]) -> Iterator[None]:
    """Report the growth in bytes of files that match ``pattern`` in ``folder``, while other programs write."""
    stop = threading.Event()

    def watch() -> None:
        most = 0
        while not stop.wait(0.2):
            size = _size(folder, pattern)
            if size > most:
                tell(size - most)
                most = size

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _size(folder: Path, pattern: str) -> int:
    """Bytes of the largest file below the matches: a tool may copy a fetched file."""
    sizes = [0]
    for found in folder.glob(pattern):
        with contextlib.suppress(OSError):  # files come and go
            sizes += [file.stat().st_size for file in found.rglob("*") if file.is_file()]
    return max(sizes)


def duration(seconds: float) -> str:
    """``1:02:03``, or ``2:03`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
