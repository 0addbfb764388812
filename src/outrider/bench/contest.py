"""Contenders take turns on the same work, so that a busy moment of the machine hits all of them."""

from __future__ import annotations

import datetime
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import torch

from outrider import __version__
from outrider.bench.process import Worker
from outrider.bench.serve import Served, closed_loop, poisson
from outrider.bench.summary import Record, details, summary
from outrider.config import VERIFIERS, SamplingParams, SpeculationParams
from outrider.config.combination import check_known
from outrider.data.workloads import Question
from outrider.errors import ConfigError
from outrider.kernels.processor import processor_name
from outrider.llm import LLM


class Contender(Protocol):
    """Something that continues a group of prompts at once."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Of the library that runs, if it is known."""
        ...

    def run(self, prompts: Sequence[list[int]], salt: str) -> tuple[list[list[int]], float, list[Served]]:
        """Tokens of each, seconds until the last of them was there, and when each token came, if that is known.

        What is learned from requests of one salt is of no use to those of another.
        """
        ...

    def peak_mb(self) -> float: ...


@dataclass(frozen=True)
class Own:
    """A draft source of ours; all sources share one model."""

    name: str
    llm: LLM
    params: SamplingParams
    speculation: SpeculationParams
    concurrency: int
    rate: float | None
    version: str = f"outrider {__version__}"

    def run(self, prompts: Sequence[list[int]], salt: str) -> tuple[list[list[int]], float, list[Served]]:
        began = time.perf_counter()
        if self.rate is None:
            served = closed_loop(self.llm, prompts, self.params, self.speculation, self.concurrency, salt)
        else:
            served = poisson(self.llm, prompts, self.params, self.speculation, self.rate, salt)
        return [s.tokens for s in served], time.perf_counter() - began, served

    def peak_mb(self) -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Peer:
    """Another engine, in a process of its own."""

    def __init__(self, worker: Worker, max_tokens: int) -> None:
        self.name = ":".join(Path(part).name for part in worker.name.split(":"))  # folders by their last part
        self._worker, self._max_tokens = worker, max_tokens
        self.version = f"{self.name.partition(':')[0]} {worker.started['version']}"
        self._peak = 0.0

    def run(self, prompts: Sequence[list[int]], salt: str) -> tuple[list[list[int]], float, list[Served]]:
        answer = self._worker.ask([list(p) for p in prompts], self._max_tokens)
        self._peak = answer["peak_mb"]
        return answer["tokens"], answer["s"], []

    def peak_mb(self) -> float:
        return self._peak


def parse(setting: str, default_k: int | str) -> SpeculationParams:
    """``SOURCE[:K][:VERIFIER][:FIELD=VALUE...]``, the fields being those of ``SpeculationParams``.

    As in ``lookup``, ``ngram:8``, ``suffix+recycling:auto:tree_nodes=24``, ``model:4:rejection`` or
    ``eagle:tree=dynamic``.
    """
    source, *rest = setting.split(":")
    check_known(source)
    options: dict[str, Any] = {"spec_length": default_k}
    known = {field.name for field in fields(SpeculationParams)}
    given: set[str] = set()
    for part in rest:
        name, _, value = part.partition("=")
        if not value:
            name, value = ("verifier" if part in VERIFIERS else "spec_length"), part
        if name not in known - given or (name == "spec_length" and not (value.isdigit() or value == "auto")):
            raise ConfigError(
                f"source={setting!r} cannot be read at {part!r}: write SOURCE, then perhaps :K, :auto, :VERIFIER or "
                ":FIELD=VALUE"
            )
        given.add(name)
        options[name] = _value(value)
    return SpeculationParams(draft=source, **options)


def _value(text: str) -> bool | float | str:
    if text in ("true", "false"):
        return text == "true"
    number = float(text) if text.replace(".", "", 1).isdigit() else None
    return text if number is None else int(number) if text.isdigit() else number


def setting(llm: LLM, contenders: Sequence[Contender]) -> dict[str, Any]:
    """On what, with what, and when: for whoever reads the numbers later."""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": processor_name() if llm.model.device.type == "cpu" else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "dtype": llm.config.dtype if llm.config.dtype == "int8" else str(llm.model.dtype).removeprefix("torch."),
        "versions": [*dict.fromkeys(c.version for c in contenders if c.version), f"torch {torch.__version__}"],
    }


def hold(
    contenders: Sequence[Contender],
    prompts: Sequence[list[int]],
    *,
    group: int,
    rounds: int,
    tick: Callable[[str], None] = lambda _: None,
) -> dict[str, Record]:
    """Every contender on every group of ``group`` prompts, ``rounds`` times, the order changing each time.

    Ctrl-C ends it early: what all contenders have finished is returned.
    """
    groups = [list(prompts[i : i + group]) for i in range(0, len(prompts), group)]
    records = {c.name: Record() for c in contenders}
    for contender in contenders:
        contender.run(groups[0][:1], "warm up")
        tick(f"warm up {contender.name}")
    try:
        for turn in range(rounds):
            for unit, work in enumerate(groups):
                shift = (turn + unit) % len(contenders)
                order = [*contenders[shift:], *contenders[:shift]]
                answers = []
                for contender in order:
                    # Sources may learn from the questions before, but not the answer itself from another contender.
                    answers.append(contender.run(work, f"{contender.name} {turn}"))
                    tick(contender.name)
                for contender, (tokens, seconds, served) in zip(order, answers, strict=True):
                    records[contender.name].add(unit, seconds, tokens, served)
    except KeyboardInterrupt:
        if not records[contenders[0].name].seconds:
            raise
    for contender in contenders:
        records[contender.name].peak_mb = contender.peak_mb()
    return records


def results(records: dict[str, Record], questions: Sequence[Question], group: int) -> dict[str, Any]:
    """By contender: everything, each category (where groups do not mix them), details. The first is the baseline."""
    base = next(iter(records.values()))
    units: dict[str, list[int]] = defaultdict(list)
    for unit in base.seconds:
        kinds = {q.category for q in questions[unit * group : (unit + 1) * group]}
        if len(kinds) == 1:
            units[kinds.pop()].append(unit)
    everything = list(base.seconds)
    return {
        name: {
            "all": summary(record, base, everything),
            "categories": {kind: summary(record, base, own) for kind, own in sorted(units.items())},
            **details(record),
        }
        for name, record in records.items()
    }
