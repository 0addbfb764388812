"""Sampled text: a test of homogeneity of both sides' tokens, with the size of fault that it would have seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from scipy import stats

from outrider_lab.certify.client import RefusedError
from outrider_lab.certify.report import Check
from outrider_lab.certify.statistics import Fit
from outrider_lab.referee.logprobs import token_texts
from outrider_lab.referee.session import Session
from outrider_lab.referee.sides import Side

__all__ = ["frequencies", "homogeneity"]

WIDTHS = (16, 1)  # outputs of one request; a server that refuses many is asked for one
AT_ONCE = 4  # requests
LEAST_IN_BIN = 10  # of both sides together

Output = tuple[str, ...]
"""A sample: its tokens' texts, or its characters where the server gives no tokens."""


def homogeneity(a: Sequence[Any], b: Sequence[Any]) -> Fit:
    """A chi-square test that two samples are of one distribution; rare values are one bin.

    ``Fit.samples`` is the size of a sample with the same power against a known distribution, half of each side's.
    """
    ours, theirs = Counter(a), Counter(b)
    common = [x for x in {*ours, *theirs} if ours[x] + theirs[x] >= LEAST_IN_BIN]
    table = np.array([[c[x] for x in common] + [c.total() - sum(c[x] for x in common)] for c in (ours, theirs)])
    table = table[:, table.sum(axis=0) > 0]
    bins, size = table.shape[1], min(len(a), len(b))
    p_value = float(stats.chi2_contingency(table, correction=False).pvalue) if bins > 1 else 1.0
    shares = table / table.sum(axis=1, keepdims=True)
    return Fit(p_value, float(np.abs(shares[0] - shares[1]).sum() / 2), size // 2, bins)


def frequencies(session: Session, prompt: str, most: int, tokens: int) -> Iterator[Check]:
    """Up to ``most`` beginnings of ``tokens`` tokens from each side, at temperature 1.

    Tested are the whole beginning, and the token at each place: a draft's fault shows behind the first.
    """
    ours: list[Output] = []
    theirs: list[Output] = []
    width = _width(session.ours, session.theirs, prompt, tokens) if most > 4 * WIDTHS[0] else 1
    try:
        while len(theirs) < most and (session.budget.left or not theirs):
            for side, into, offset in ((session.theirs, theirs, 0), (session.ours, ours, most)):
                count = min(AT_ONCE, -(-(most - len(into)) // width))
                into += _samples(side, prompt, tokens, width, [offset + len(into) + width * i for i in range(count)])
                session.tick(f"{side.name}, samples")
    finally:  # an interruption keeps the samples before it
        if ours and theirs:
            yield _judge(session, ours, theirs, most, tokens)


def _judge(session: Session, ours: list[Output], theirs: list[Output], most: int, tokens: int) -> Check:
    name = "frequencies of samples"
    fits = {"the whole": homogeneity(ours, theirs)}
    for place in range(max(map(len, theirs), default=0)):
        mine, other = ([s[place] for s in samples if len(s) > place] for samples in (ours, theirs))
        if mine and other:
            fits[f"token {place + 1}"] = homogeneity(mine, other)
    if all(fit.bins < 2 for fit in fits.values()):
        many = len(ours) + len(theirs)
        alike = "are the same" if len({*ours, *theirs}) == 1 else "are too few"
        return Check(name, "note", f"not tested: all {many} samples at temperature 1 {alike}", data={"compared": 0})
    tests = len(fits)
    failed = {name: fit for name, fit in fits.items() if fit.fails(tests)}
    worst = min(fits.values(), key=lambda fit: fit.p_value)
    seen = {name: fit.detectable(tests) for name, fit in fits.items()}
    size = min(len(ours), len(theirs))
    summary = (
        f"{size} beginnings of {tokens} tokens from each: p-value {worst.p_value:.2g} (least of {tests} tests), total "
        f"variation {worst.total_variation:.3f} in {worst.bins} bins; a total variation of {min(seen.values()):.3f} "
        "would have been seen with 90 %"
    )
    lines = [f"{n}: p-value {f.p_value:.2g}, total variation {f.total_variation:.3f}" for n, f in failed.items()]
    data = {
        "samples": size,
        "p_value": worst.p_value,
        "total_variation": worst.total_variation,
        "seen_with_90_percent": min(seen.values()),
        "tests": {
            name: {"p_value": fit.p_value, "total_variation": fit.total_variation, "bins": fit.bins, "seen": seen[name]}
            for name, fit in fits.items()
        },
    }
    summary += session.shortened(size, most)
    return Check(name, "fail" if failed else "pass", summary, lines, data)


def _width(ours: Side, theirs: Side, prompt: str, tokens: int) -> int:
    """The most outputs of one request that both servers give, and that are not all the same."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 1.0, "seed": 0}
    for width in WIDTHS[:-1]:
        try:
            found = [side.choices({**body, "n": width})[0] for side in (ours, theirs)]
        except RefusedError:
            continue
        if all(len(choices) == width and len({c["text"] for c in choices}) > 1 for choices in found):
            return width
    return WIDTHS[-1]


def _samples(side: Side, prompt: str, tokens: int, width: int, seeds: Sequence[int]) -> list[Output]:
    """Outputs with ``seeds``, which no other request has: an engine may give sequence i of n the seed plus i."""

    def one(seed: int) -> list[Output]:
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": tokens, "temperature": 1.0, "seed": seed, "logprobs": 0}
        choices, _ = side.choices(body if width == 1 else {**body, "n": width})
        return [token_texts(choice) or tuple(choice["text"]) for choice in choices]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [output for outputs in pool.map(one, seeds) for output in outputs]
