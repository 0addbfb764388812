"""Times of a model's forward passes, kept in the user's cache: to measure them takes longer than all else of a start.

Kept times count, times how much slower passes are now, where a few passes are slower alike: load and clock change them
all, another build or machine some more than others. Where passes are faster now, the kept times were measured under
load, which slows long passes more than short ones, and all are measured anew.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from outrider.models.native_llama import NativeLlamaModel
from outrider.models.run_time import bytes_read
from outrider.native.processor import num_threads, processor_name
from outrider.utils.user_cache import cache_root

PassTimes = Mapping[tuple[int, ...], float]
"""Seconds by the numbers that describe a pass, as its context and its rows."""

_VERSION = 2  # of what is kept: with experts, the seconds that they take
_TRIES = 3  # of each pass that is timed to compare, of which the shortest counts
_ALIKE = 1.3  # how much more slower one probe may be than another, where all are slower alike, as under load
_MOST_KEPT = 500  # files of times that are read
_LEAST_BYTES = 50_000_000  # of weights: passes of smaller models take time for other things than reading
_PATIENCE = 0.5  # seconds that comparing may take
_OTHERWISE = 3.0  # times slower that a machine may be and still be taken for the same


def measured_once(
    model: NativeLlamaModel, probes: tuple[tuple[int, ...], ...], time_pass: Callable[[tuple[int, ...]], float],
    measure: Callable[[], PassTimes], more: tuple[tuple[int, ...], ...] = (),
) -> PassTimes:  # fmt: skip
    """The result of ``measure``, or its kept result for an equal model on this machine.

    Args:
        probes: passes that are timed again to compare.
        time_pass: seconds of one pass now.
        more: without which kept times do not count, as a disturbance left them out.
    """
    times = _plausible(_measured_once(model, probes, time_pass, measure, more))
    if model.kept_at is not None:
        facts = {"processor": processor_name(), "threads": model.context.threads, "bytes": bytes_read(model)}
        _write(_last_place(model.kept_at.parent.name), facts | {"times": _as_json(times)})
    return times


def last_times(name: str) -> tuple[int, PassTimes] | None:
    """Threads and times at the last start of the model with packed weights of this name; None: it has not started.

    Times of another processor are not those of this machine.
    """
    try:
        said = json.loads(_last_place(name).read_text())
        if said["processor"] != processor_name():
            return None
        return int(said["threads"]), _from_json(said["times"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def passes_over_limits(read_gb_s: float, but: str) -> list[float]:
    """Of models that were started on this machine: times longer that a pass of a row took than reading its weights.

    Args:
        read_gb_s: the rate of reading with as many threads as now.
        but: the name of a model that does not count.
    """
    found = list[float]()
    places = sorted(_last_place("").parent.glob("*.json"))
    for place in places[:_MOST_KEPT]:
        try:
            said = json.loads(place.read_text())
            size, times = int(said["bytes"]), _from_json(said["times"])
            same = (said["processor"], said["threads"]) == (processor_name(), num_threads())
        except (OSError, ValueError, TypeError, KeyError):
            continue
        passes = [times[case] for case in sorted(times) if case[1:] == (1,)]
        if same and passes and size >= _LEAST_BYTES and place.stem != but:
            found.append(passes[0] * read_gb_s * 1e9 / size)
    return found


def _last_place(name: str) -> Path:
    return cache_root() / "timings" / "models" / f"{name}.json"


def _plausible(times: PassTimes) -> PassTimes:
    """No pass takes longer than one of more rows that is alike: where one did, others had its processor meanwhile."""

    def least(case: tuple[int, ...]) -> float:
        context, rows, *rest = case
        return min(s for (c, r, *more), s in times.items() if c == context and r >= rows and more == rest)

    return {case: least(case) for case in times}


def _measured_once(
    model: NativeLlamaModel, probes: tuple[tuple[int, ...], ...], time_pass: Callable[[tuple[int, ...]], float],
    measure: Callable[[], PassTimes], more: tuple[tuple[int, ...], ...],
) -> PassTimes:  # fmt: skip
    path = _place(model)
    kept = _read(path)
    if all(case in kept for case in (*probes, *more)):
        if _TRIES * sum(kept[probe] for probe in probes) > _PATIENCE:
            return kept  # a large model's first steps correct them at less cost
        slower = [min(time_pass(probe) for _ in range(_TRIES)) / kept[probe] for probe in probes]
        if max(slower) <= _ALIKE * min(slower) and min(slower) >= 1 / _ALIKE and max(slower) <= _OTHERWISE:
            return {case: statistics.mean(slower) * seconds for case, seconds in kept.items()}
    times = measure()
    _write(path, _as_json(times))
    return times


def _as_json(times: PassTimes) -> list[Any]:
    return [[list(case), seconds] for case, seconds in times.items()]


def _from_json(said: Any) -> PassTimes:
    """Times as they were written. Raises ValueError or TypeError if they are anything but positive."""
    times = {tuple(map(int, case)): float(seconds) for case, seconds in said}
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in times.values()):
        raise ValueError("times are positive")
    return times


def _write(path: Path, value: Any) -> None:
    with suppress(OSError):  # a cache that cannot be written costs a second at the next start
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(value), encoding="utf-8")
        os.replace(fresh, path)


def _place(model: NativeLlamaModel) -> Path:
    """The file for models of these sizes and this precision, on this processor with this number of threads."""
    facts = (
        _VERSION, repr(model.config), model.implementation, str(model.device), model.precision,
        str(model.cache_dtype), model.weight_bytes, processor_name(), model.context.threads, model.context.isa,
    )  # fmt: skip
    return cache_root() / "timings" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.json"


def _read(path: Path) -> PassTimes:
    """The times in a file; empty if it is missing or holds anything but positive times."""
    try:
        return _from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}
