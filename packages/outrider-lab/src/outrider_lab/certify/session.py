"""Runs all checks in order, for one model and its draft sources."""

from __future__ import annotations

import itertools
import math
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outrider import __version__
from outrider.llm import LLM
from outrider.native.processor import installed_version
from outrider.verify.verifiers.catalog import VERIFIERS
from outrider_lab.certify import batch_invariance, draft_consistency, enumeration, frequencies, identity
from outrider_lab.certify.allowance import Allowance
from outrider_lab.certify.report import Certificate, Check
from outrider_lab.data import workloads
from outrider_lab.measure import Expect, Tick


@dataclass(frozen=True)
class Coverage:
    """The most work of a session. Each level makes every check; more samples detect smaller deviations."""

    toy_samples: int
    prompts: int
    tokens: int
    each: int  # prompts of every setting whose output is compared with plain decoding's
    samples: int  # texts of every source with every verifier whose frequencies are compared
    in_turn: bool = False  # sampling options, and greedy draft lengths, take turns
    minutes: float = math.inf  # of processor time, roughly: work beyond it is left out, and the report says so


QUICK = Coverage(toy_samples=200, prompts=3, tokens=12, each=1, samples=1, in_turn=True, minutes=0.7)
NORMAL = Coverage(toy_samples=1000, prompts=6, tokens=32, each=2, samples=3)
FULL = Coverage(toy_samples=4000, prompts=24, tokens=64, each=4, samples=16, minutes=10)


def certify(
    llm: LLM,
    questions: Sequence[workloads.Question],
    coverage: Coverage,
    *,
    sources: Sequence[str] | None = None,
    verifiers: Sequence[str] | None = None,
    tick: Tick = lambda _: None,
    expect: Expect = lambda _: None,
) -> Certificate:
    """Run every check that applies. ``sources``: draft sources to test, None for all that can be built.

    Ctrl-C (``KeyboardInterrupt``) ends the session with a report of the checks that were made.
    """
    sources = [s for s in (sources or llm.drafters) if s != "none"]
    verifiers = list(verifiers or VERIFIERS)
    prompts = workloads.token_ids(llm.tokenizer, questions)
    began = time.thread_time()
    about = subject(llm, sources, verifiers, len(questions))
    expect(_count(len(prompts), coverage, sources, verifiers))
    checks: list[Check] = []
    complete = True
    try:
        for found in _checks(llm, prompts, coverage, sources, verifiers):
            if isinstance(found, Check):
                checks.append(found)
                tick(found.name)
            else:
                tick(found)
    except KeyboardInterrupt:
        complete = False
    minutes = f"{(time.thread_time() - began) / 60:.1f}"
    limit = "" if math.isinf(coverage.minutes) else f" of about {coverage.minutes:g}"
    return Certificate(about | {"minutes of processor time": minutes + limit}, checks, complete)


def _count(prompts: int, coverage: Coverage, sources: Sequence[str], verifiers: Sequence[str]) -> int:
    """The number of values that ``_checks`` yields."""
    drafts = min(prompts, 2 * coverage.each)
    return (
        enumeration.count(verifiers, in_turn=coverage.in_turn, sources=sources)
        + 1
        + identity.count(prompts, sources, verifiers=verifiers, each=coverage.each, one_length=coverage.in_turn)
        + draft_consistency.count(drafts, sources)
        + frequencies.count(sources, verifiers=verifiers, one_mode=coverage.in_turn)
    )


def subject(llm: LLM, sources: Sequence[str], verifiers: Sequence[str], prompts: int) -> dict[str, Any]:
    """The certified model and options, and the machine."""
    config = llm.config
    return {
        "model": config.model,
        "draft model": ", ".join(config.draft_models) or "none",
        "sources": ", ".join(sources),
        "verifiers": ", ".join(v if VERIFIERS[v].exact else f"{v} (lossy, not tested)" for v in verifiers),
        "dtype": _dtype(llm),
        "device": str(llm.model.device),
        "cache": config.kv_cache,
        "prompts": prompts,
        "versions": f"outrider {__version__}, torch {installed_version('torch')}, {platform.machine()}",
    }


def _checks(
    llm: LLM, prompts: Sequence[list[int]], coverage: Coverage, sources: Sequence[str], verifiers: Sequence[str]
) -> Iterator[Check | str]:
    allowance = Allowance(60 * coverage.minutes)
    yield from enumeration.check(
        verifiers,
        samples=coverage.toy_samples,
        in_turn=coverage.in_turn,
        sources=sources,
        allowance=allowance.part(0.3),
    )
    findings = batch_invariance.examine(llm.model, stretch(prompts, llm.engine.max_seq_len))
    yield batch_invariance.check(findings, _dtype(llm))
    noise = findings.noise
    yield from identity.check(
        llm,
        prompts,
        sources,
        verifiers=verifiers,
        tokens=coverage.tokens,
        each=coverage.each,
        noise=noise,
        one_length=coverage.in_turn,
        allowance=allowance.part(0.5),
    )
    yield from draft_consistency.check(
        llm, prompts[: 2 * coverage.each], sources, tokens=coverage.tokens, noise=noise, allowance=allowance.part(0.2)
    )
    yield from frequencies.check(
        llm,
        prompts,
        sources,
        verifiers=verifiers,
        tokens=min(24, coverage.tokens),
        samples=coverage.samples,
        one_mode=coverage.in_turn,
        allowance=allowance,
    )


def _dtype(llm: LLM) -> str:
    return llm.model.precision


def stretch(prompts: Sequence[list[int]], room: int) -> list[int]:
    """Token ids of text from the prompts to score: the compared rows, and a context before them."""
    count = min(120, room - 2 * batch_invariance.ROWS - 2)
    endless = itertools.cycle(token for prompt in prompts for token in prompt)
    return list(itertools.islice(endless, max(count, batch_invariance.ROWS + 1)))
