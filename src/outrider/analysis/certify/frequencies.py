"""Do samples follow the target's distribution, on the real model, for verifiers that promise that and no more?

Every emitted token is placed in the target's own cumulative distribution, read afresh with the text before it: with
the tokens of the vocabulary in some order, ``u = P(tokens before x) + v P(x)`` with ``v`` uniform is itself uniform in
(0, 1) and independent of all others if and only if each token was drawn from the target (Rosenblatt 1952, randomised).
So all positions of all samples make one test, whatever the vocabulary: chi-square over equal bins of u.

Two orders are tested, as each is blind to what moves mass within its bins only: by the target's probability, which
shows output that is too likely or too unlikely; and by the draft's favourites, where there is a draft model, which
shows accepting too much of what the draft says.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from outrider.analysis.agreement import Rows, Text, model_rows
from outrider.analysis.certify.cells import pairs
from outrider.analysis.certify.report import Check
from outrider.analysis.certify.statistics import POWER, Fit, chi_square
from outrider.config import SamplingParams, SpeculationParams
from outrider.llm import LLM

BINS = 16
MODES = {
    "temperature 1": SamplingParams(temperature=1.0),
    "top-p 0.8": SamplingParams(temperature=1.0, top_p=0.8),
}


def check(
    llm: LLM,
    prompts: Sequence[list[int]],
    sources: Sequence[str],
    *,
    verifiers: Sequence[str],
    tokens: int,
    samples: int,
) -> Iterator[Check | str]:
    """Yields progress, then one check; nothing if no verifier asked for is distribution-exact only."""
    plan = [(v, s, m) for s, v in pairs(sources, verifiers, coupled=False) for m in MODES]
    if not plan:
        return
    fits: dict[str, Fit] = {}
    for verifier, source, mode in plan:
        params = replace(MODES[mode], max_tokens=tokens, ignore_eos=True)
        speculation = SpeculationParams(draft=source, verifier=verifier, spec_length=4)  # type: ignore[arg-type]
        texts = _sample(llm, prompts, params, speculation, samples)
        for order, values in places(llm, texts, params).items():
            counts = np.histogram(values, bins=BINS, range=(0, 1))[0]
            fits[f"{source} with {verifier}, {mode}, by {order}"] = chi_square(counts, np.full(BINS, 1 / BINS))
        yield f"{source} with {verifier}, {mode}"
    failed = [name for name, fit in fits.items() if fit.fails(len(fits))]
    least = max(fit.detectable(len(fits)) for fit in fits.values())
    count = min(fit.samples for fit in fits.values())
    yield Check(
        "samples follow the target",
        "fail" if failed else "pass",
        f"{len(failed)} of {len(fits)} tests over {count} tokens each find another distribution (a total variation of "
        f"{least:.3f} over {BINS} bins would be seen with probability {POWER:g})",
        [f"{n}: p-value {fits[n].p_value:.1e}, total variation {fits[n].total_variation:.3f}" for n in failed],
        {"p_values": {n: f.p_value for n, f in fits.items()}, "detectable_total_variation": least, "tokens": count},
    )


def places(llm: LLM, texts: Sequence[Text], params: SamplingParams) -> dict[str, list[float]]:
    """``u`` of every emitted token, for each order of the vocabulary."""
    target = model_rows(llm.model, llm.engine.vocab_size)
    draft = model_rows(llm.draft_models[0], llm.engine.vocab_size) if llm.draft_models else None
    rng = random.Random(0)
    found: dict[str, list[float]] = {}
    for text in texts:
        p = target(text, params)
        found.setdefault("the target's probability", []).extend(_places(p, p, text.output, rng))
        if draft is not None:
            q = draft(text, params)
            ratio = q / np.maximum(p[: len(q)], np.finfo(np.float64).tiny)
            found.setdefault("what the draft overrates", []).extend(_places(p, ratio, text.output, rng))
    return found


def _places(p: Rows, keys: Rows, output: Sequence[int], rng: random.Random) -> list[float]:
    """One text: u of each token, the vocabulary ordered by ``keys``, largest first. [positions, vocab] each."""
    return [_place(row, key, token, rng.random()) for row, key, token in zip(p, keys, output, strict=False)]


def _place(p: NDArray[np.float64], keys: NDArray[np.float64], token: int, v: float) -> float:
    """Mass of what comes before ``token``, and a share ``v`` of all that ties with it."""
    before, ties = p[keys > keys[token]].sum(), p[keys == keys[token]].sum()
    return float(min(before + v * ties, np.nextafter(1.0, 0.0)))


def _sample(
    llm: LLM, prompts: Sequence[list[int]], params: SamplingParams, speculation: SpeculationParams, samples: int
) -> list[Text]:
    """``samples`` texts of each prompt, with seeds of their own."""
    texts = []
    for i, prompt in enumerate(prompts):
        options = [replace(params, seed=samples * i + n) for n in range(samples)]
        outputs = llm.generate([prompt] * samples, options, speculation=speculation)
        texts += [Text(prompt, o.token_ids) for o in outputs]
    return texts
