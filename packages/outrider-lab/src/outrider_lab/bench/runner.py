"""Runs backends in turn on the same prompts, so that a busy moment of the machine affects all of them."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from outrider.config import SpeculationParams
from outrider.extensions import extension
from outrider.llm import LLM
from outrider.native.library import loaded
from outrider.native.processor import installed_version, num_threads, processor_name
from outrider_lab.bench.arrivals import ServedRequest
from outrider_lab.bench.backends import BenchBackend
from outrider_lab.bench.regret import add_regrets
from outrider_lab.bench.summary import BackendResult, details, summary
from outrider_lab.data.workloads import Question

Work = TypeVar("Work", contravariant=True)


class Contender(Protocol[Work]):
    """A ``BenchBackend``, or a backend for other work than token ids, such as conversations."""

    @property
    def name(self) -> str: ...

    def run(self, prompts: Sequence[Work], salt: str) -> tuple[list[list[int]], float, list[ServedRequest]]: ...

    def peak_mb(self) -> float: ...


_Prompt = TypeVar("_Prompt")


def environment(llm: LLM, backends: Sequence[BenchBackend]) -> dict[str, Any]:
    """The machine, versions and date of the measurements."""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": _device_name(llm),
        "threads": num_threads(),
        "dtype": llm.model.precision,
        "versions": [*dict.fromkeys(c.version for c in backends if c.version), *_torch_version()],
    }


def _torch_version() -> list[str]:
    version = installed_version("torch")
    return [] if version is None else [f"torch {version}"]


def _device_name(llm: LLM) -> str:
    if str(llm.model.device) == "cpu":
        return processor_name() if (native := loaded()) is None else f"{processor_name()} ({native.isa})"
    return str(extension("backends", "torch").gpu_name())


def run_interleaved(
    backends: Sequence[Contender[_Prompt]],
    prompts: Sequence[_Prompt],
    *,
    group: int,
    rounds: int,
    tick: Callable[[str], None] = lambda _: None,
) -> dict[str, BackendResult]:
    """Every backend on every group of ``group`` prompts, ``rounds`` times, the order changing each time.

    Ctrl-C ends the run early; the result then has the rounds that all backends have finished.
    """
    groups = [list(prompts[i : i + group]) for i in range(0, len(prompts), group)]
    records = {c.name: BackendResult() for c in backends}
    for backend in backends:
        backend.run(groups[0][:1], "warm up")
        tick(f"warm up {backend.name}")
    try:
        for turn in range(rounds):
            for unit, work in enumerate(groups):
                shift = (turn + unit) % len(backends)
                order = [*backends[shift:], *backends[:shift]]
                answers = []
                for backend in order:
                    # Sources may learn from earlier questions, but not from another backend's answer.
                    answers.append(backend.run(work, f"{backend.name} {turn}"))
                    tick(backend.name)
                for backend, (tokens, seconds, served) in zip(order, answers, strict=True):
                    records[backend.name].add(unit, seconds, tokens, served)
    except KeyboardInterrupt:
        if not records[backends[0].name].seconds:
            raise
    for backend in backends:
        records[backend.name].peak_mb = backend.peak_mb()
    return records


def results(
    records: dict[str, BackendResult],
    questions: Sequence[Question],
    group: int,
    settings: Mapping[str, SpeculationParams] = MappingProxyType({}),
) -> dict[str, Any]:
    """For each backend: all questions, each category (if groups do not mix them), details. The first is the baseline.

    ``settings``: the speculation parameters of Outrider's backends, by name.
    """
    base = next(iter(records.values()))
    units: dict[str, list[int]] = defaultdict(list)
    for unit in base.seconds:
        kinds = {q.category for q in questions[unit * group : (unit + 1) * group]}
        if len(kinds) == 1:
            units[kinds.pop()].append(unit)
    everything = list(base.seconds)
    found: dict[str, Any] = {
        name: {
            "all": summary(record, base, everything),
            "categories": {kind: summary(record, base, own) for kind, own in sorted(units.items())},
            **details(record),
        }
        for name, record in records.items()
    }
    add_regrets(found, records, units, settings)
    return found
