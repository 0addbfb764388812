"""Section 4.1 of Leviathan et al. (2023) in small: T5 models translate, drafted for by smaller ones.

    python -m benchmarks.translation --folder DIR

Trains a target and drafts of two sizes where DIR has none (a minute or less each, on one core). For each draft, length
γ and temperature: α (accepted of the tokens that were looked at), c (a draft token's time over a plain one's), the
speed-up that theorem 3.8 predicts from these, the one predicted from measured T(n), and the one measured. Under
rejection, as in the paper; then the same with matching. Counts outputs that are the same without drafts: all must be
at temperature 0, and with matching always. Compares the law of what rejection samples with that of plain decoding.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2_contingency

from benchmarks.translation_models import DRAFTS, TARGET, pair, train
from outrider import LLM, SamplingParams, SpeculationParams
from outrider.native.processor import set_num_threads
from outrider_lab.cost import DraftCost, flat, measured_improvement
from outrider_lab.measure import Measurements, measure_latency_curve, measure_settings
from outrider_lab.theory import improvement

GAMMAS = (3, 5, 7)
MODES = {0: SamplingParams(temperature=0, max_tokens=80), 1: SamplingParams(temperature=1.0, max_tokens=80, seed=5)}
PLAIN = SpeculationParams(draft="none")


def speculation(gamma: int, verifier: Any = "rejection") -> SpeculationParams:
    return SpeculationParams(draft="model", spec_length=gamma, verifier=verifier)


def sources(count: int) -> list[list[int]]:
    """Numbers of many words, unlikely to have been trained on."""
    rng, found = random.Random(99), list[list[int]]()
    while len(found) < count:
        source, target = pair(rng)
        if len(target) >= 16:
            found.append(source)
    return found


def rows(llm: LLM, name: str, texts: list[list[int]], rounds: int) -> list[dict[str, Any]]:
    """One row for each temperature and γ."""
    target_t = measure_latency_curve(llm.model, context=24)
    found: list[dict[str, Any]] = []
    for temperature, params in MODES.items():
        settings = {"plain": PLAIN} | {f"{v} {g}": speculation(g, v) for v in ("rejection", "matching") for g in GAMMAS}
        runs = measure_settings(llm, texts, params, settings, rounds=rounds)
        for gamma in GAMMAS:
            paper, ours = runs[f"rejection {gamma}"], runs[f"matching {gamma}"]
            alpha, c = paper.alpha or 0.0, paper.draft_s_per_token / runs["plain"].s_per_token
            overhead, cost = runs["plain"].overhead_s, DraftCost(per_token=flat(paper.draft_s_per_token))
            found.append({
                "draft": name, "temperature": temperature, "gamma": gamma, "alpha": alpha, "c": c,
                "theory": float(improvement(alpha, gamma, c)),
                "with_T": measured_improvement([alpha] * gamma, target_t, cost, overhead=overhead),
                "measured": ratio(runs["plain"], paper),
                "alpha_matching": ours.alpha, "matching": ratio(runs["plain"], ours),
                "same_rejection": same(runs["plain"], paper), "same_matching": same(runs["plain"], ours),
                "texts": len(texts), "tokens": sum(map(len, runs["plain"].outputs)),
            })  # fmt: skip
            print(shown(found[-1]), flush=True)
    return found


def ratio(plain: Measurements, drafted: Measurements) -> float:
    """Plain seconds a token over those with drafts, as the median over texts: others use the machine too."""
    each = [
        (p / max(1, n)) / (d / max(1, m))
        for p, n, d, m in zip(plain.seconds, plain.tokens, drafted.seconds, drafted.tokens, strict=True)
        if n > 0 < m
    ]
    return statistics.median(each)


def same(plain: Measurements, drafted: Measurements) -> int:
    return sum(a == b for a, b in zip(plain.outputs, drafted.outputs, strict=True))


def law(llm: LLM, source: list[int], samples: int) -> float:
    """The p-value of chi-square over whole outputs, with drafts under rejection and without."""
    params = [SamplingParams(temperature=1.0, max_tokens=40, seed=i) for i in range(samples)]
    counts = [
        Counter(tuple(o.token_ids) for o in llm.generate([source] * samples, params, speculation=each))
        for each in (PLAIN, speculation(5))
    ]
    texts = [text for text, _ in (counts[0] + counts[1]).most_common() if min(c[text] for c in counts) >= 5]
    table = [[c[text] for text in texts] + [samples - sum(c[text] for text in texts)] for c in counts]
    return float(chi2_contingency(np.array([column for column in zip(*table, strict=True) if sum(column)]).T).pvalue)


def shown(r: dict[str, Any]) -> str:
    return (
        f"| {r['draft']} | {r['temperature']} | {r['gamma']} | {r['alpha']:.2f} | {r['c']:.2f} | {r['theory']:.2f} "
        f"| {r['with_T']:.2f} | {r['measured']:.2f} | {r['alpha_matching']:.2f} | {r['matching']:.2f} "
        f"| {r['same_rejection']} | {r['same_matching']} of {r['texts']} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where models are, or are put")
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=1000, help="for the law; 0: leave it out")
    args = parser.parse_args()
    set_num_threads(1)
    for name, size in {"target": TARGET, **DRAFTS}.items():
        if not (args.folder / _file(name)).exists():
            train(size, args.folder / _file(name))
    texts, found, laws = sources(args.texts), list[dict[str, Any]](), dict[str, float]()
    for name in DRAFTS:
        given: dict[str, Any] = {"draft_model": str(args.folder / _file(name)), "draft": "model", "threads": 1}
        with LLM(str(args.folder / "target"), max_batch_size=16, **given) as llm:
            found += rows(llm, name, texts, args.rounds)
            if args.samples:
                laws[name] = law(llm, min(texts, key=len), args.samples)
                print(f"{name}: {args.samples} samples with and without drafts: p = {laws[name]:.3f}", flush=True)
    print(json.dumps({"rows": found, "law_p": laws}))


def _file(name: str) -> str:
    return name.replace(" ", "-")


if __name__ == "__main__":
    main()
