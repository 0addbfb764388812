"""Does a draft model say the same whether it kept up with a text or reads it afresh?

Exact verifiers hide what is wrong with a draft: a draft cache that keeps refused tokens costs acceptance, not output.
So that is looked for by itself. A request resumed at any of its steps, as a new one whose prompt ends there, draws with
the same noise, so its first step must draft and accept just what the first request's step did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from outrider.analysis.certify.report import Check, Status
from outrider.config import SamplingParams, SpeculationParams
from outrider.llm import LLM

SOURCES_WITH_A_CACHE = ("model",)
"""Sources whose drafts are a function of the text alone, but which keep a cache between steps."""


def check(
    llm: LLM, prompts: Sequence[list[int]], sources: Sequence[str], *, tokens: int, noise: float
) -> Iterator[Check | str]:
    """Yields progress, then one check; nothing if no source keeps a cache."""
    sources = [s for s in sources if s in SOURCES_WITH_A_CACHE]
    if not sources:
        return
    params = SamplingParams(max_tokens=tokens, temperature=1.0, seed=77, ignore_eos=True)
    compared, different = 0, []
    for source in sources:
        speculation = SpeculationParams(draft=source, spec_length=4)
        for number, prompt in enumerate(prompts):
            output = llm.generate([prompt], params, speculation=speculation)[0]
            done = 0
            for step, (drafted, accepted) in enumerate(output.stats.rounds):
                if step and drafted:
                    fresh = _first_round(llm, [*prompt, *output.token_ids[:done]], params, speculation, drafted)
                    compared += 1
                    if fresh != (drafted, accepted):
                        different.append(f"{source}, prompt {number}, step {step}: kept {accepted}, afresh {fresh[1]}")
                done += accepted + 1
            yield f"{source}, prompt {number}"
    rounded = noise > 0 and len(different) <= 0.05 * compared
    status: Status = "pass" if not different else "note" if rounded else "fail"
    summary = f"{compared - len(different)} of {compared} drafts are what the source says when it reads the text afresh"
    if status == "note":
        summary += "; so few differences are rounding, as rows depend on their company here"
    yield Check(
        "drafts do not depend on what was refused before", status, summary, different[:8], {"compared": compared}
    )


def _first_round(
    llm: LLM, prompt: list[int], params: SamplingParams, speculation: SpeculationParams, drafted: int
) -> tuple[int, int]:
    """Drafted and accepted tokens of a new request's first step, which may draft up to ``drafted`` tokens."""
    speculation = replace(speculation, spec_length=drafted)
    output = llm.generate([prompt], replace(params, max_tokens=drafted + 1), speculation=speculation)[0]
    return output.stats.rounds[0]
