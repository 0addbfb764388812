"""Tests that samples of the real model follow the target's distribution, for verifiers that keep only the distribution.

Every emitted token x has a place in the target's own cumulative distribution, computed again from the text before it.
With the tokens of the vocabulary in some order, and ``v`` uniform in (0, 1), ``u = P(tokens before x) + v P(x)`` is
uniform in (0, 1) and independent of all other u if and only if each token was drawn from the target (Rosenblatt 1952,
randomised). All positions of all samples therefore make one test for any vocabulary: chi-square over equal bins of u.

Two orders are tested, as each is blind to mass that moves within its bins. The order by the target's probability shows
output that is too likely or too unlikely. The order by the ratio of draft to target, with a draft model, shows that too
many draft tokens are accepted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams, SpeculationParams
from outrider.llm import LLM
from outrider_lab.agreement import ProbRows, TargetText, model_probs
from outrider_lab.certify.allowance import Allowance
from outrider_lab.certify.pairs import exact_pairs, in_turn
from outrider_lab.certify.report import Check
from outrider_lab.certify.statistics import POWER, Fit, chi_square

NAME = "samples follow the target"
BINS = 16
ENOUGH = 5 * BINS  # tokens for a test: chi-square needs five in a bin
GROUP = 16  # pairs of source and verifier whose requests run together
PILOT_SEED = 1 << 40  # above the seeds of all counted samples
_WITH = " with "
MODES = {
    "temperature 1": SamplingParams(temperature=1.0),
    "top-p 0.8": SamplingParams(temperature=1.0, top_p=0.8),
}


SampledSetting = tuple[str, str, str]
"""Source, verifier, mode."""


def count(sources: Sequence[str], *, verifiers: Sequence[str], one_mode: bool = False) -> int:
    """The number of values that ``check`` yields."""
    plan = _plan(sources, verifiers, one_mode)
    return 1 + sum(-(-len(pairs) // GROUP) for pairs in plan.values()) + 1 if plan else 0


def _plan(sources: Sequence[str], verifiers: Sequence[str], one_mode: bool) -> dict[str, list[tuple[str, str]]]:
    """The pairs of source and verifier of each mode; empty without any."""
    chosen = exact_pairs(sources, verifiers, shares_noise=False)
    turns = in_turn(chosen, list(MODES)) if one_mode and chosen else {}
    plan = {mode: [pair for pair in chosen if turns.get(pair, mode) == mode] for mode in MODES}
    return {mode: pairs for mode, pairs in plan.items() if pairs}


def check(
    llm: LLM,
    prompts: Sequence[list[int]],
    sources: Sequence[str],
    *,
    verifiers: Sequence[str],
    tokens: int,
    samples: int,
    one_mode: bool = False,
    allowance: Allowance | None = None,
) -> Iterator[Check | str]:
    """Yields progress, then one check over ``samples`` texts of every source with every verifier in every mode.

    ``one_mode``: each pair has one of the modes, in turn, and a test joins the modes: places are uniform in all.
    With too little time in ``allowance`` there are fewer texts, but at least one of each. The tests are of each
    verifier over all sources, of each source over all verifiers, and of each pair, if they have ``ENOUGH`` tokens;
    without any test the check is a note. Yields nothing if no verifier keeps only the distribution.
    """
    plan = _plan(sources, verifiers, one_mode)
    if not plan:
        return
    settings = [(*pair, mode) for mode, pairs in plan.items() for pair in pairs]
    rng = random.Random(0)
    modes = {mode: replace(base, max_tokens=tokens, ignore_eos=True) for mode, base in MODES.items()}

    def pilot() -> int:
        tried = settings[:: max(1, len(settings) // 16)]
        for setting, text in zip(tried, _texts(llm, prompts, modes, tried, PILOT_SEED), strict=True):
            pit_values(llm, text, modes[setting[2]], random.Random(0))
        return len(tried)

    samples = (allowance or Allowance()).times(len(settings), least=1, most=samples, pilot=pilot)
    yield f"{samples} samples of every source and verifier"
    found: dict[str, dict[str, list[float]]] = {}  # name of a test -> order of the vocabulary -> values
    first = 0
    for mode, pairs in plan.items():
        for at in range(0, len(pairs), GROUP):
            batch = [(*pair, mode) for pair in pairs[at : at + GROUP] for _ in range(samples)]
            for setting, text in zip(batch, _texts(llm, prompts, modes, batch, first), strict=True):
                for order, values in pit_values(llm, text, modes[mode], rng).items():
                    for name in _tests(setting, one_mode):
                        found.setdefault(name, {}).setdefault(order, []).extend(values)
            first += len(batch)
            yield f"samples, {mode}, {batch[-1][0]} with {batch[-1][1]}"
    fits = {
        f"{name}, by {order}": chi_square(
            np.histogram(values, bins=BINS, range=(0, 1))[0].astype(np.float64), np.full(BINS, 1 / BINS)
        )
        for name, orders in found.items()
        for order, values in orders.items()
        if len(values) >= ENOUGH
    }
    few = f"no test: none has {ENOUGH} tokens; use --full, no --quick, or more --max-minutes"
    yield _verdict(fits) if fits else Check(NAME, "note", few)


def _tests(setting: SampledSetting, join: bool) -> list[str]:
    """The tests that a text counts for: of the verifier, the source, and the pair; ``join``: of all modes together."""
    source, verifier, mode = setting
    of = "all options" if join else mode
    return list(dict.fromkeys((f"{verifier}, {of}", f"{source}, {of}", f"{source}{_WITH}{verifier}, {of}")))


def _verdict(fits: dict[str, Fit]) -> Check:
    failed = [name for name, fit in fits.items() if fit.fails(len(fits))]
    pairs = [fit for name, fit in fits.items() if _WITH in name]
    together = [fit for name, fit in fits.items() if _WITH not in name]
    said = " and ".join(
        f"{max(f.detectable(len(fits)) for f in some):.3f} in {whose} ({min(f.samples for f in some)} tokens and more)"
        for some, whose in ((pairs, "a pair of source and verifier"), (together, "a source or verifier by itself"))
        if some
    )
    count = min(fit.samples for fit in fits.values())
    return Check(
        NAME,
        "fail" if failed else "pass",
        f"{len(failed)} of {len(fits)} tests over {count} tokens and more find another distribution; over {BINS} bins, "
        f"with probability {POWER:g}, a total variation would be seen of {said}",
        [f"{n}: p-value {fits[n].p_value:.1e}, total variation {fits[n].total_variation:.3f}" for n in failed],
        {
            "p_values": {n: f.p_value for n, f in fits.items()},
            "samples": {n: f.samples for n, f in fits.items()},
            "detectable_total_variation": max(f.detectable(len(fits)) for f in fits.values()),
            "tokens": count,
        },
    )


def pit_values(llm: LLM, text: TargetText, params: SamplingParams, rng: random.Random) -> dict[str, list[float]]:
    """``u`` of every emitted token, by the vocabulary's order. ``rng`` draws v; use one generator for all texts."""
    p = model_probs(llm.model, llm.engine.vocab_size)(text, params)
    found = {"the target's probability": _pit_values(p, p, text.output, rng)}
    if llm.draft_models:
        q = model_probs(llm.draft_models[0], llm.engine.vocab_size)(text, params)
        ratio = q / np.maximum(p[: len(q)], np.finfo(np.float64).tiny)
        found["what the draft overrates"] = _pit_values(p, ratio, text.output, rng)
    return found


def _pit_values(p: ProbRows, keys: ProbRows, output: Sequence[int], rng: random.Random) -> list[float]:
    """u of each token of one text. ``keys`` order the vocabulary, the largest first. Both are [positions, vocab]."""
    return [_pit_value(row, key, token, rng.random()) for row, key, token in zip(p, keys, output, strict=False)]


def _pit_value(p: NDArray[np.float64], keys: NDArray[np.float64], token: int, v: float) -> float:
    """The probability mass before ``token``, plus a share ``v`` of the mass that ties with it."""
    before, ties = p[keys > keys[token]].sum(), p[keys == keys[token]].sum()
    return float(min(before + v * ties, np.nextafter(1.0, 0.0)))


def _texts(
    llm: LLM,
    prompts: Sequence[list[int]],
    modes: Mapping[str, SamplingParams],
    batch: Sequence[SampledSetting],
    first: int,
) -> list[TargetText]:
    """One text for each setting of ``batch``: prompts take turns, and each text has its own seed."""
    own = [prompts[(first + i) % len(prompts)] for i in range(len(batch))]
    options = [replace(modes[mode], seed=first + i) for i, (_, _, mode) in enumerate(batch)]
    speculation = [SpeculationParams(draft=s, verifier=v, spec_length=4) for s, v, _ in batch]  # type: ignore[arg-type]
    outputs = llm.generate(own, options, speculation=speculation)
    return [TargetText(prompt, o.token_ids) for prompt, o in zip(own, outputs, strict=True)]
