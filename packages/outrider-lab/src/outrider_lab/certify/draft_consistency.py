"""Tests that a draft model proposes the same tokens with the cache of earlier steps as after reading the text again.

Exact verifiers hide faults of drafts: a draft cache that keeps refused tokens costs acceptance, not output. This check
finds them. A new request whose prompt ends at some step of another request draws with the same noise. Its first step
must therefore draft the same tokens as that step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from outrider.config import SamplingParams, SpeculationParams, source_record
from outrider.llm import LLM
from outrider_lab.certify.allowance import Allowance
from outrider_lab.certify.report import Check, Status
from outrider_lab.certify.statistics import POWER, detectable_rate


def count(prompts: int, sources: Sequence[str]) -> int:
    """The number of values that ``check`` yields."""
    kept = _with_cache(sources)
    return len(kept) * prompts + 1 if kept else 0


def _with_cache(sources: Sequence[str]) -> list[str]:
    """The sources with a cache, except trained heads.

    The drafts of heads are no function of the text alone: tokens from the prefix cache come without features.
    """
    records = {name: source_record(name) for name in sources}
    return [name for name, s in records.items() if s.cache is not None and not s.head_kinds and not s.in_model_files]


def check(
    llm: LLM,
    prompts: Sequence[list[int]],
    sources: Sequence[str],
    *,
    tokens: int,
    noise: float,
    allowance: Allowance | None = None,
) -> Iterator[Check | str]:
    """Yields progress, then one check; nothing if no source keeps a cache.

    Work beyond ``allowance`` is left out, except each source's first prompt. On Ctrl-C the check reports its findings
    up to then.
    """
    sources, limit = _with_cache(sources), allowance or Allowance()
    if not sources:
        return
    params = SamplingParams(max_tokens=tokens, temperature=1.0, seed=77, ignore_eos=True)
    found = _DraftComparison(llm, params)
    try:
        for number, prompt in enumerate(prompts):
            for source in sources:
                if number == 0 or limit.left:
                    found.compare(source, number, prompt)
                    yield f"{source}, prompt {number}"
                else:
                    yield "drafts afresh, no time for more"
    except KeyboardInterrupt:
        if found.compared:
            yield found.verdict(noise)
        raise
    yield found.verdict(noise)


class _DraftComparison:
    """Compares drafts of running requests with drafts of new requests that begin at the same step."""

    def __init__(self, llm: LLM, params: SamplingParams) -> None:
        self._llm, self._params = llm, params
        self.compared = 0
        self._different: list[str] = []

    def compare(self, source: str, number: int, prompt: list[int]) -> None:
        """Compare the drafts at each step of one output."""
        speculation = SpeculationParams(draft=source, spec_length=4)
        with _recorded(self._llm.drafters[source]) as recorded:
            output = self._llm.generate([prompt], self._params, speculation=speculation)[0]
            kept_up, done = list(recorded), 0
            for step, (draft, (_, accepted)) in enumerate(zip(kept_up, output.stats.rounds, strict=False)):
                if step and draft:
                    recorded.clear()
                    text = [*prompt, *output.token_ids[:done]]
                    _first_step(self._llm, text, self._params, speculation, len(draft))
                    self.compared += 1
                    if recorded[0] != draft:
                        self._different.append(f"{source}, prompt {number}, step {step}: {draft}, afresh {recorded[0]}")
                done += accepted + 1

    def verdict(self, noise: float) -> Check:
        """The check. A few differences are rounding if rows depend on their batch (``noise`` above 0)."""
        compared, different = self.compared, self._different
        rounded = noise > 0 and len(different) <= 0.05 * compared
        status: Status = "pass" if not different else "note" if rounded else "fail"
        summary = f"{compared - len(different)} of {compared} drafts are the source's own after reading the text again"
        if status == "note":
            summary += "; rounding explains a few differences, as rows depend on their batch here"
        elif not different:
            summary += f"; a fault in {detectable_rate(compared):.2%} of them would be seen with probability {POWER:g}"
        return Check(
            "drafts do not depend on what was refused before", status, summary, different[:8], {"compared": compared}
        )


def _first_step(
    llm: LLM, prompt: list[int], params: SamplingParams, speculation: SpeculationParams, drafted: int
) -> None:
    """A new request that ends with its first step, in which it may draft up to ``drafted`` tokens."""
    speculation = replace(speculation, spec_length=drafted)
    for _ in llm.stream(prompt, replace(params, max_tokens=drafted + 1), speculation=speculation):
        return  # leaving the stream ends the request


@contextmanager
def _recorded(drafter: Any) -> Iterator[list[tuple[int, ...]]]:
    """The tokens of every draft that ``drafter`` proposes while the context lasts."""
    propose = drafter.propose
    recorded: list[tuple[int, ...]] = []

    def recording(requests: Any, budgets: Any) -> Any:
        drafts = propose(requests, budgets)
        recorded.extend(draft.tokens for draft in drafts)
        return drafts

    drafter.propose = recording
    try:
        yield recorded
    finally:
        del drafter.propose  # the class's own again
