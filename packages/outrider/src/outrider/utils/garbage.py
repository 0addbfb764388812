"""The collector of garbage in a process that serves."""

from __future__ import annotations

import gc


def freeze_gc() -> None:
    """Exclude all objects of now from garbage collection: with torch's modules it stops all threads for 0.1 s.

    For a process that keeps it until it ends.
    """
    gc.collect()
    gc.freeze()
