"""Token for token the same with drafts as without: greedy, and sampled with the same seed, alone and in company."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from outrider.analysis.certify.cells import pairs
from outrider.analysis.certify.near_ties import Parting, first_difference, parting
from outrider.analysis.certify.report import Check
from outrider.config import SamplingParams, SpeculationParams
from outrider.llm import LLM

MODES = {
    "greedy": SamplingParams(),
    "same seed": SamplingParams(temperature=0.8, top_p=0.95, presence_penalty=0.2, seed=1234),
}
SPEC_LENGTHS = (2, 7)

Outputs = list[list[int]]


@dataclass(frozen=True)
class Difference:
    """One output that is not plain decoding's."""

    mode: str
    source: str
    mix: str
    prompt: int
    where: Parting

    def line(self) -> str:
        kind = "rounding" if self.where.is_rounding else "BUG"
        w = self.where
        return (
            f"{kind}: {self.mode}, {self.source}, {self.mix}, prompt {self.prompt}: token {w.position} is {w.other} "
            f"instead of {w.token}, whose score is better by {w.margin:.2g}"
        )


def check(
    llm: LLM,
    prompts: Sequence[list[int]],
    sources: Sequence[str],
    *,
    verifiers: Sequence[str],
    tokens: int,
    noise: float,
) -> Iterator[Check | str]:
    """Yields progress, then a check for each mode: N prompts × sources × K × batch mixes, against plain decoding."""
    for mode, base in MODES.items():
        params = replace(base, max_tokens=tokens, ignore_eos=True)
        settings = _settings(sources, verifiers, sampled=not params.greedy)
        if not settings:
            continue
        plain = [llm.generate([p], params, speculation=SpeculationParams())[0].token_ids for p in prompts]
        yield f"{mode}, plain"
        found: list[Difference] = []
        compared = 0
        broken: set[str] = set()
        for mix, serve in MIXES.items():
            for name, outputs in serve(llm, prompts, params, settings, broken):
                compared += len(prompts)
                for i, (a, b) in enumerate(zip(plain, outputs, strict=True)):
                    if first_difference(a, b) is not None:
                        found.append(Difference(mode, name, mix, i, parting(llm, prompts[i], params, a, b, noise)))
                yield f"{mode}, {mix}, {name}"
        yield _verdict(mode, compared, found, broken)


def _verdict(mode: str, compared: int, found: list[Difference], broken: set[str]) -> Check:
    bugs = [d for d in found if not d.where.is_rounding]
    rounded = len(found) - len(bugs)
    summary = f"{compared - len(found)} of {compared} outputs are plain decoding's, token for token"
    if found:
        summary += f"; {rounded} part at a near-tie that rounding decided, {len(bugs)} for no such reason"
    lines = [d.line() for d in sorted(found, key=lambda d: d.where.is_rounding)[:12]]
    lines += [f"and {len(found) - 12} more"] if len(found) > 12 else []
    lines += [f"a source was switched off: {error}" for error in sorted(broken)]
    data = {"compared": compared, "rounding": rounded, "bugs": len(bugs)}
    return Check(f"{mode} output", "fail" if bugs else "note" if found or broken else "pass", summary, lines, data)


def _settings(sources: Sequence[str], verifiers: Sequence[str], *, sampled: bool) -> dict[str, SpeculationParams]:
    """Greedy output is the target's with every exact verifier; sampled tokens only with those that are coupled."""
    chosen = pairs(sources, verifiers, coupled=True if sampled else None)
    return {
        f"{source} K={k} {verifier}": SpeculationParams(draft=source, spec_length=k, verifier=verifier)  # type: ignore[arg-type]
        for source, verifier in chosen
        for k in SPEC_LENGTHS
    }


Served = Iterator[tuple[str, Outputs]]


def _by_source(
    llm: LLM,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    settings: dict[str, SpeculationParams],
    broken: set[str],
    *,
    together: bool,
) -> Served:
    """Every prompt with one source after the other: one request at a time, or all at once."""
    batches = [list(prompts)] if together else [[prompt] for prompt in prompts]
    for name, speculation in settings.items():
        outputs = [o for batch in batches for o in llm.generate(batch, params, speculation=speculation)]
        broken |= {o.stats.draft_error for o in outputs if o.stats.draft_error}
        yield name, [o.token_ids for o in outputs]


def _mixed(
    llm: LLM,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    settings: dict[str, SpeculationParams],
    broken: set[str],
) -> Served:
    """All prompts at once, last first, each with another source, K and verifier, some with none."""
    ways: list[SpeculationParams | None] = [SpeculationParams(), *settings.values()]
    order = list(reversed(range(len(prompts))))
    chosen = [ways[i % len(ways)] for i in order]
    outputs = llm.generate([prompts[i] for i in order], params, speculation=chosen)
    broken |= {o.stats.draft_error for o in outputs if o.stats.draft_error}
    by_prompt = dict(zip(order, outputs, strict=True))
    yield "every source", [by_prompt[i].token_ids for i in range(len(prompts))]


MIXES: dict[
    str, Callable[[LLM, Sequence[list[int]], SamplingParams, dict[str, SpeculationParams], set[str]], Served]
] = {
    "alone": partial(_by_source, together=False),
    "together": partial(_by_source, together=True),
    "mixed in one batch": _mixed,
}
