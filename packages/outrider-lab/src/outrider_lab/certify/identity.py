"""Compares tokens with plain decoding's: greedy, and sampled with the same seed, alone and in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from outrider.config import SamplingParams, SpeculationParams
from outrider.llm import LLM
from outrider_lab.certify.allowance import Allowance
from outrider_lab.certify.near_ties import Divergence, explain_divergence, first_divergence
from outrider_lab.certify.pairs import exact_pairs, in_turn
from outrider_lab.certify.report import Check, Status
from outrider_lab.certify.statistics import POWER, detectable_rate

MODES = {
    "greedy": SamplingParams(),
    "same seed": SamplingParams(temperature=0.8, top_p=0.95, presence_penalty=0.2, seed=1234),
}
SPEC_LENGTHS = (2, 7)

CHUNK = 64  # requests in one call, if many are compared
LEAST_TOKENS = 8  # of an output, even with no time left
_GREEDY_SHARE = 0.75  # of the time: greedy outputs have more verifiers to compare

IdentityCase = tuple[str, SpeculationParams, int]
"""A request to compare: the name of its setting, the setting, and the number of its prompt."""


@dataclass(frozen=True)
class CaseBatch:
    """Requests that run together."""

    kind: str
    cases: list[IdentityCase]
    required: bool
    """Whether the batch runs even with no time left."""


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


def count(
    prompts: int, sources: Sequence[str], *, verifiers: Sequence[str], each: int, one_length: bool = False
) -> int:
    """The number of values that ``check`` yields: for each mode plain decoding, every batch, and the check itself."""
    settings = [
        _settings(sources, verifiers, sampled=not params.greedy, one_length=one_length) for params in MODES.values()
    ]
    return sum(2 + len(_batches(found, prompts, each)) for found in settings if found)


def check(
    llm: LLM,
    prompts: Sequence[list[int]],
    sources: Sequence[str],
    *,
    verifiers: Sequence[str],
    tokens: int,
    each: int,
    noise: float,
    one_length: bool = False,
    allowance: Allowance | None = None,
) -> Iterator[Check | str]:
    """Yields progress, then a check for each mode, against plain decoding.

    ``one_length``: greedy outputs of a source and a verifier have one of the draft lengths, in turn.

    Every setting (source, K, verifier) continues ``each`` prompts in one batch with all others. Every source, with its
    settings in turn, continues as many prompts alone, and as many in batches of its own. Batches beyond ``allowance``
    are left out, except each setting's first prompt. On Ctrl-C the check reports its findings up to then.
    """
    left = allowance or Allowance()
    for mode, base in MODES.items():
        params = replace(base, max_tokens=tokens, ignore_eos=True)
        settings = _settings(sources, verifiers, sampled=not params.greedy, one_length=one_length)
        if settings:
            own = left.part(_GREEDY_SHARE if params.greedy else 1.0)
            yield from _TokenComparison(llm, mode, params, prompts, noise).run(
                _batches(settings, len(prompts), each), own
            )


class _TokenComparison:
    """Compares outputs of one mode with plain decoding's."""

    def __init__(self, llm: LLM, mode: str, params: SamplingParams, prompts: Sequence[list[int]], noise: float) -> None:
        self._llm, self._mode, self._params, self._prompts, self._noise = llm, mode, params, prompts, noise
        self._plain: dict[int, list[int]] = {}
        self._found: list[Difference] = []
        self._broken: set[str] = set()
        self._compared = 0

    def run(self, batches: Sequence[CaseBatch], allowance: Allowance) -> Iterator[Check | str]:
        """Yields progress for plain decoding and for each batch, run or left out, then the check."""
        planned = sum(len(batch.cases) for batch in batches)
        required = sum(len(batch.cases) for batch in batches if batch.required)
        tokens = self._params.max_tokens  # fewer, if the required batches would take more than half of the time
        tokens = allowance.times(2 * required, least=min(LEAST_TOKENS, tokens), most=tokens, pilot=self._pilot)
        self._params = replace(self._params, max_tokens=tokens)
        yield f"{self._mode}, {tokens} tokens each"
        try:
            for batch in batches:
                if batch.required or allowance.left:
                    self._compare(batch)
                    yield f"{self._mode}, {batch.kind}, {batch.cases[-1][0]}"
                else:
                    yield f"{self._mode}, no time for more"
        except KeyboardInterrupt:
            if self._compared:
                yield self._verdict(planned)
            raise
        yield self._verdict(planned)

    def _pilot(self) -> int:
        """Decode one text, and return its tokens: a pilot of the time of a token."""
        return len(self._decode(0))

    def _decode(self, prompt: int) -> list[int]:
        """Plain decoding's output; it shares no cache rows with other settings."""
        speculation = SpeculationParams(draft="none")
        text = [self._prompts[prompt]]
        return self._llm.generate(text, self._params, speculation=speculation, cache_salt="plain")[0].token_ids

    def _compare(self, batch: CaseBatch) -> None:
        numbers = [prompt for _, _, prompt in batch.cases]
        self._plain |= {prompt: self._decode(prompt) for prompt in {*numbers} - {*self._plain}}
        texts = [self._prompts[prompt] for prompt in numbers]
        outputs = self._llm.generate(texts, self._params, speculation=[case[1] for case in batch.cases])
        self._compared += len(batch.cases)
        self._broken |= {o.stats.draft_error for o in outputs if o.stats.draft_error}
        for (name, _, prompt), output in zip(batch.cases, outputs, strict=True):
            a, b = self._plain[prompt], output.token_ids
            if first_divergence(a, b) is not None:
                where = explain_divergence(self._llm, self._prompts[prompt], self._params, a, b, self._noise)
                self._found.append(Difference(self._mode, name, batch.kind, prompt, where))

    def _verdict(self, planned: int) -> Check:
        found, compared = self._found, self._compared
        bugs = [d for d in found if not d.where.is_rounding]
        rounded = len(found) - len(bugs)
        tokens = self._params.max_tokens
        summary = f"{compared - len(found)} of {compared} outputs of {tokens} tokens are plain decoding's"
        summary += f" ({planned} planned)" if compared < planned else ""
        if found:
            summary += f"; {rounded} diverge at a near-tie that rounding decided, {len(bugs)} do not"
        else:
            summary += f"; a fault in {detectable_rate(compared):.2%} of them would be seen with probability {POWER:g}"
        lines = [d.line() for d in sorted(found, key=lambda d: d.where.is_rounding)[:12]]
        lines += [f"and {len(found) - 12} more"] if len(found) > 12 else []
        lines += [f"a source was switched off: {error}" for error in sorted(self._broken)]
        data = {"compared": compared, "planned": planned, "tokens": tokens, "rounding": rounded, "bugs": len(bugs)}
        status: Status = "fail" if bugs else "note" if found or self._broken else "pass"
        return Check(f"{self._mode} output", status, summary, lines, data)


def _settings(
    sources: Sequence[str], verifiers: Sequence[str], *, sampled: bool, one_length: bool
) -> dict[str, SpeculationParams]:
    """Settings with the target's tokens: greedy with all exact verifiers, sampled with those that share noise."""
    chosen = exact_pairs(sources, verifiers, shares_noise=True if sampled else None)
    lengths = in_turn(chosen, SPEC_LENGTHS) if one_length and chosen and not sampled else {}
    return {
        f"{source} K={k} {verifier}": SpeculationParams(draft=source, spec_length=k, verifier=verifier)  # type: ignore[arg-type]
        for source, verifier in chosen
        for k in SPEC_LENGTHS
        if lengths.get((source, verifier), k) == k
    }


def _batches(settings: dict[str, SpeculationParams], prompts: int, each: int) -> list[CaseBatch]:
    """Batches of settings, ordered so that every setting comes early and repeats with other prompts later."""
    by_source: dict[str, list[str]] = {}
    for name, speculation in settings.items():
        by_source.setdefault(speculation.draft, []).append(name)
    own = [
        [(name, settings[name], (at + i) % prompts) for i in range(each) for name in [names[(at + i) % len(names)]]]
        for at, names in enumerate(by_source.values())
    ]
    batches: list[CaseBatch] = []
    for i in range(each):
        many = [(name, settings[name], (at + i) % prompts) for at, name in enumerate(reversed(settings))]
        batches += [CaseBatch("mixed in one batch", many[at : at + CHUNK], i == 0) for at in range(0, len(many), CHUNK)]
        batches += [CaseBatch("alone", [cases[i]], i == 0) for cases in own]
        batches += [CaseBatch("together", cases, required=False) for cases in own if i == 0 and each > 1]
    return batches
