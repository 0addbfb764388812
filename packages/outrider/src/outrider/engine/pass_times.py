"""Times of a model's forward passes, kept in the user's cache: to measure them takes longer than all else of a start.

Kept times count where a few passes, timed now, take as long: another load, clock or build of the library shows in them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from outrider.models.base import LoadedModel
from outrider.native.library import library
from outrider.native.processor import num_threads, processor_name
from outrider.utils.user_cache import cache_root

__all__ = ["PassTimes", "measured_once"]

PassTimes = Mapping[tuple[int, ...], float]
"""Seconds by the numbers that describe a pass, as its context and its rows."""

_TRIES = 3  # of each pass that is timed to compare, of which the shortest counts
_ALIKE = 1.3  # the largest ratio of two times that are taken as one


def measured_once(
    model: LoadedModel, probes: tuple[tuple[int, ...], ...], time_pass: Callable[[tuple[int, ...]], float],
    measure: Callable[[], PassTimes],
) -> PassTimes:  # fmt: skip
    """What ``measure`` gives, or gave when it was last called for such a model here.

    Args:
        probes: passes that are timed again to compare.
        time_pass: seconds of one pass now.
    """
    path = _place(model)
    kept = _read(path)
    if all(probe in kept for probe in probes) and all(
        1 / _ALIKE <= min(time_pass(probe) for _ in range(_TRIES)) / kept[probe] <= _ALIKE for probe in probes
    ):
        return kept
    times = measure()
    with suppress(OSError):  # a cache that cannot be written costs a second at the next start
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps([[list(case), seconds] for case, seconds in times.items()]))
        os.replace(fresh, path)
    return times


def _place(model: LoadedModel) -> Path:
    """The file for models of these sizes and this precision, on this processor with so many threads."""
    functions = library()
    facts = (
        repr(model.config), model.implementation, str(model.device), model.precision,
        str(model.cache_dtype), model.weight_bytes, processor_name(), num_threads(),
        None if functions is None else functions.outrider_isa(),
    )  # fmt: skip
    return cache_root() / "timings" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.json"


def _read(path: Path) -> PassTimes:
    """Empty where there is no such file, or one that holds anything but positive times."""
    try:
        times = {tuple(map(int, case)): float(seconds) for case, seconds in json.loads(path.read_text())}
    except (OSError, ValueError, TypeError):
        return {}
    return times if all(math.isfinite(seconds) and seconds > 0 for seconds in times.values()) else {}
