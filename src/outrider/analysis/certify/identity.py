"""Token identity with plain decoding: greedy, and sampled with the same seed, alone and in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from outrider.analysis.certify.near_ties import Divergence, explain_divergence, first_divergence
from outrider.analysis.certify.pairs import exact_pairs
from outrider.analysis.certify.report import Check
from outrider.config import SamplingParams, SpeculationParams
from outrider.llm import LLM

MODES = {
    "greedy": SamplingParams(),
    "same seed": SamplingParams(temperature=0.8, top_p=0.95, presence_penalty=0.2, seed=1234),
}
SPEC_LENGTHS = (2, 7)

CHUNK = 64  # requests handed over at once where many are compared

IdentityCase = tuple[str, SpeculationParams, int]
"""A request to compare: the name of its setting, the setting, and the number of its prompt."""


@dataclass(frozen=True)
class Difference:
    """One output that is not plain decoding's."""

    mode: str
    source: str
    batching: str
    prompt: int
    where: Divergence

    def line(self) -> str:
        kind = "rounding" if self.where.is_rounding else "BUG"
        w = self.where
        return (
            f"{kind}: {self.mode}, {self.source}, {self.batching}, prompt {self.prompt}: token {w.position} is "
            f"{w.other} instead of {w.token}, whose score is better by {w.margin:.2g}"
        )


def count(prompts: int, sources: Sequence[str], *, verifiers: Sequence[str], each: int) -> int:
    """How much ``check`` yields: for each mode plain decoding, every batch, and the check itself."""
    settings = [_settings(sources, verifiers, sampled=not params.greedy) for params in MODES.values()]
    return sum(2 + sum(map(len, _batches(found, prompts, each).values())) for found in settings if found)


def check(
    llm: LLM,
    prompts: Sequence[list[int]],
    sources: Sequence[str],
    *,
    verifiers: Sequence[str],
    tokens: int,
    each: int,
    noise: float,
) -> Iterator[Check | str]:
    """Yields progress, then a check for each mode, against plain decoding.

    Every setting (source, K, verifier) continues ``each`` prompts in one batch with all others. Every source, with its
    settings in turn, continues as many alone and as many in batches of its own.
    """
    for mode, base in MODES.items():
        params = replace(base, max_tokens=tokens, ignore_eos=True)
        settings = _settings(sources, verifiers, sampled=not params.greedy)
        if not settings:
            continue
        plain = [llm.generate([p], params, speculation=SpeculationParams(draft="none"))[0].token_ids for p in prompts]
        yield f"{mode}, plain"
        found: list[Difference] = []
        compared = 0
        broken: set[str] = set()
        for batching, batches in _batches(settings, len(prompts), each).items():
            for cases in batches:
                texts = [prompts[prompt] for _, _, prompt in cases]
                outputs = llm.generate(texts, params, speculation=[speculation for _, speculation, _ in cases])
                compared += len(cases)
                broken |= {o.stats.draft_error for o in outputs if o.stats.draft_error}
                for (name, _, prompt), output in zip(cases, outputs, strict=True):
                    a, b = plain[prompt], output.token_ids
                    if first_divergence(a, b) is not None:
                        where = explain_divergence(llm, prompts[prompt], params, a, b, noise)
                        found.append(Difference(mode, name, batching, prompt, where))
                yield f"{mode}, {batching}, {cases[-1][0]}"
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
    """Greedy output is the target's with every exact verifier; sampled tokens only with those that are shares_noise."""
    chosen = exact_pairs(sources, verifiers, shares_noise=True if sampled else None)
    return {
        f"{source} K={k} {verifier}": SpeculationParams(draft=source, spec_length=k, verifier=verifier)  # type: ignore[arg-type]
        for source, verifier in chosen
        for k in SPEC_LENGTHS
    }


def _batches(settings: dict[str, SpeculationParams], prompts: int, each: int) -> dict[str, list[list[IdentityCase]]]:
    """Batches by what runs together."""
    by_source: dict[str, list[str]] = {}
    for name, speculation in settings.items():
        by_source.setdefault(speculation.draft, []).append(name)
    own = [
        [(name, settings[name], (at + i) % prompts) for i in range(each) for name in [names[(at + i) % len(names)]]]
        for at, names in enumerate(by_source.values())
    ]
    many = [
        (name, settings[name], (at + i) % prompts) for i in range(each) for at, name in enumerate(reversed(settings))
    ]
    return {
        "alone": [[case] for cases in own for case in cases],
        "together": [cases for cases in own if len(cases) > 1],
        "mixed in one batch": [many[i : i + CHUNK] for i in range(0, len(many), CHUNK)],
    }
