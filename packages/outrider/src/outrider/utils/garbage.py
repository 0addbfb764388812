"""The collector of garbage in a process that serves."""

from __future__ import annotations

import gc


def keep_loaded() -> None:
    """Never look through what is loaded now again: with torch's modules that stops everything for a tenth of a second.

    For a process that keeps it until it ends.
    """
    gc.collect()
    gc.freeze()
