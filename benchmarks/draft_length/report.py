"""Speeds and regrets of a length policy over all recorded requests and machines, by percentile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from benchmarks.draft_length.machines import MACHINES, MIXTURES, Machine
from benchmarks.draft_length.record import Recording
from benchmarks.draft_length.replay import FIXED, Machinery, Played, fixed_seconds
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.expert_union import ExpertUnion
from outrider.engine.draft_length.policy import DraftLength
from outrider.engine.draft_length.settings import DraftLengthSettings

PERCENTILES = (1, 10, 50, 90, 99)
MakePolicy = Callable[[Machine], DraftLength]
Key = tuple[
    str, str, str
]  # machine, source, and whether requests come to one process (stream) or each to its own (cold)


def timed(machine: Machine, settings: DraftLengthSettings) -> StepCost:
    """T(n) as calibration finds it: a few percent off at each size."""
    noise, own = random.Random(1), machine.experts
    experts = None if own is None else ExpertUnion(own.timed, own.seconds, settings.weight)
    return StepCost([s * noise.lognormvariate(0.0, 0.03) for s in machine.seconds], machine.slope, settings, experts)


def play(
    recordings: Sequence[Recording],
    make: MakePolicy,
    machines: Iterable[str] = MACHINES,
    modes: Sequence[str] = ("stream", "cold"),
) -> dict[Key, list[Played]]:
    """Every request on every machine."""
    out: dict[Key, list[Played]] = {}
    for name in machines:
        machine = (MACHINES | MIXTURES)[name]
        for source in dict.fromkeys(each.source for each in recordings):
            own = [each for each in recordings if each.source == source]
            for mode in modes:
                out[name, source, mode] = list(_play_one(own, machine, name, make, mode))
    return out


def _play_one(
    recordings: Sequence[Recording], machine: Machine, name: str, make: MakePolicy, mode: str
) -> Iterable[Played]:
    order = list(recordings)
    random.Random(3).shuffle(order)
    shared = Machinery(machine, make(machine), 5)
    for number, recording in enumerate(order):
        machinery = shared if mode == "stream" else Machinery(machine, make(machine), number)
        (seconds,) = machinery.decode([recording], number)
        plain, best = _fixed(recording, name)
        yield Played(recording, seconds, plain, best)


@cache
def _fixed(recording: Recording, machine: str) -> tuple[float, float]:
    """Seconds without drafts, and with the best of the fixed lengths."""
    seconds = [fixed_seconds(recording, (MACHINES | MIXTURES)[machine], length) for length in FIXED]
    return seconds[0], min(seconds)


def groups(played: Mapping[Key, Sequence[Played]]) -> dict[Key, list[Played]]:
    """All of a mode together, by machine, by source, and by both."""
    out: dict[Key, list[Played]] = {}
    for (machine, source, mode), own in played.items():
        for key in (("all", "all", mode), (machine, "all", mode), ("all", source, mode), (machine, source, mode)):
            out.setdefault(key, []).extend(own)
    return out


def summary(played: Sequence[Played]) -> dict[str, Any]:
    """``mean``: plain time over time, each request weighing the same; percentiles of speed and regret."""
    speeds, regrets = [each.speed for each in played], [100 * each.regret for each in played]
    return {
        "mean": round(len(speeds) / sum(1 / speed for speed in speeds), 4),
        "speed": [round(float(x), 3) for x in np.percentile(speeds, PERCENTILES)],
        "regret_percent": [round(float(x), 1) for x in np.percentile(regrets, PERCENTILES)],
    }


def table(summaries: Mapping[Key, Mapping[str, Any]]) -> list[str]:
    """A line for each group."""
    heads = "".join(f"{f'p{p}':>7}" for p in PERCENTILES)
    lines = [f"{'':38}{'mean':>7} speed{heads[5:]}  regret %{heads[5:]}"]
    for key, row in summaries.items():
        speed, regret = ("".join(f"{x:7}" for x in row[name]) for name in ("speed", "regret_percent"))
        lines.append(f"{' '.join(key):38}{row['mean']:7.3f}{speed}   {regret}")
    return lines
