"""Progress of long work on stderr: a bar on a terminal, nothing in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def working(description: str, total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Yields a function to call with a word on what has just been done, once for each of ``total`` pieces of work."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)

        def tick(what: str) -> None:
            bar.update(task, advance=1, description=f"{description}: {what}")

        yield tick
