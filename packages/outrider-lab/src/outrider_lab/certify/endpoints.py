"""Two OpenAI-compatible servers beside each other: say, one engine with speculation and without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from outrider.errors import ConfigError
from outrider_lab.certify.client import ask, first_model, root
from outrider_lab.certify.report import Certificate, Check, Status
from outrider_lab.certify.statistics import SIGNIFICANCE
from outrider_lab.data.workloads import Question
from outrider_lab.measure import Tick

NEAR_TIE = 0.25
"""Rounding may swap tokens whose log-probabilities are closer: bfloat16 logits of 16 to 32 are 0.125 apart."""

SAMPLES = 200
SAMPLE_TOKENS = 2
CONCURRENCY = 4  # requests at once


@dataclass(frozen=True)
class CompletionsClient:
    """The completions API at ``url`` (with or without /v1)."""

    url: str
    model: str

    def complete(self, prompt: str, **options: Any) -> dict[str, Any]:
        """The first choice of a completion. Raises ConfigError for another answer, or none."""
        answer = ask(f"{root(self.url)}/completions", {"model": self.model, "prompt": prompt, **options})
        try:
            choice: dict[str, Any] = answer["choices"][0]
            if not isinstance(choice["text"], str):
                raise TypeError
        except (KeyError, IndexError, TypeError):
            raise ConfigError(
                f"{self.url} does not answer like an OpenAI completions server: {answer!r:.200}"
            ) from None
        return choice

    def texts(self, requests: Sequence[dict[str, Any]], workers: int) -> list[str]:
        """The completions' texts, ``workers`` requests at a time."""
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda request: str(self.complete(**request)["text"]), requests))


def compare(
    endpoint: str,
    baseline: str,
    questions: Sequence[Question],
    *,
    model: str | None = None,
    tokens: int = 128,
    samples: int = SAMPLES,
    tick: Tick = lambda _: None,
) -> Certificate:
    """Compare greedy and seeded outputs, and frequencies of samples; the baseline against itself is the control.

    Args:
        model: the model's name on both servers; None: the first model that each server lists.
    """
    ours, theirs = (CompletionsClient(url, model or first_model(url)) for url in (endpoint, baseline))
    greedy: list[dict[str, Any]] = [{"prompt": q.text, "max_tokens": tokens, "temperature": 0} for q in questions]
    seeded = [{**request, "temperature": 0.8, "seed": 1234} for request in greedy]
    checks = []
    base = _with_progress(tick, "baseline, greedy", lambda: theirs.texts(greedy, 1))
    again = _with_progress(tick, "baseline again, concurrent", lambda: theirs.texts(greedy, CONCURRENCY))
    checks.append(_control(base, again))
    for load, workers in (("alone", 1), ("concurrent", CONCURRENCY)):
        found = _with_progress(tick, f"endpoint, greedy, {load}", partial(ours.texts, greedy, workers))
        checks.append(_greedy(theirs, questions, base, found, tokens, load))
    plain = _with_progress(tick, "baseline, seeded", lambda: theirs.texts(seeded, 1))
    found = _with_progress(tick, "endpoint, seeded", lambda: ours.texts(seeded, 1))
    checks.append(_seeded(plain, found))
    checks.append(_frequencies(ours, theirs, questions[0].text, samples, tick))
    subject = {
        "endpoint": endpoint,
        "baseline": baseline,
        "model": ours.model,
        "prompts": len(questions),
        "tokens": tokens,
    }
    return Certificate(subject, checks)


def _with_progress(tick: Tick, what: str, work: Callable[[], list[str]]) -> list[str]:
    result = work()
    tick(what)
    return result


def _control(base: list[str], again: list[str]) -> Check:
    differ = sum(a != b for a, b in zip(base, again, strict=True))
    if not differ:
        return Check(
            "control: baseline against itself",
            "pass",
            f"{len(base)} of {len(base)} greedy outputs repeat under concurrency",
        )
    return Check(
        "control: baseline against itself",
        "note",
        f"{differ} of {len(base)} greedy outputs of the baseline change when requests run together: its arithmetic "
        "depends on the batch, so speculation need not give identical outputs either",
        data={"differ": differ},
    )


def _greedy(
    baseline: CompletionsClient,
    questions: Sequence[Question],
    base: list[str],
    found: list[str],
    tokens: int,
    load: str,
) -> Check:
    """The check of greedy outputs.

    A difference is a near-tie if the baseline's two best tokens are within ``NEAR_TIE`` of each other there.
    """
    lines, ties, others, unknown = [], 0, 0, 0
    for question, a, b in zip(questions, base, found, strict=True):
        if a == b:
            continue
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        gap = _gap(baseline, question.text, tokens, at)
        kind = "cannot be judged" if gap is None else "near-tie" if gap <= NEAR_TIE else "NOT A TIE"
        unknown, ties, others = unknown + (gap is None), ties + (kind == "near-tie"), others + (kind == "NOT A TIE")
        shown = "no log-probabilities" if gap is None else f"the two best tokens are {gap:.3f} apart"
        lines.append(
            f"{kind}: {question.id} parts at character {at}: {a[at : at + 20]!r} became {b[at : at + 20]!r}; {shown}"
        )
    same = len(base) - len(lines)
    summary = f"{same} of {len(base)} outputs are the baseline's"
    if lines:
        summary = (
            f"{len(lines)} of {len(base)} outputs differ from the baseline's: {ties} at a near-tie, {others} where "
            f"there is none, {unknown} cannot be judged"
        )
    status: Status = "pass" if not lines else "fail" if others or unknown else "note"
    return Check(f"greedy output, {load}", status, summary, lines, {"same": same, "ties": ties, "others": others})


def _gap(baseline: CompletionsClient, prompt: str, tokens: int, at: int) -> float | None:
    """The gap of the two best log-probabilities at the baseline's token with character ``at``; None if unknown."""
    try:
        choice = baseline.complete(prompt, max_tokens=tokens, temperature=0, logprobs=2)
        pieces, best = choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"]
        end = 0
        for piece, top in zip(pieces, best, strict=True):
            end += len(piece)
            if end > at:
                first, second = sorted(top.values(), reverse=True)[:2]
                return float(first - second)
    except (ConfigError, KeyError, TypeError, ValueError):
        pass  # log-probabilities are optional in the API
    return None


def _seeded(plain: list[str], found: list[str]) -> Check:
    same = sum(a == b for a, b in zip(plain, found, strict=True))
    summary = f"{same} of {len(plain)} outputs with the same seed are the baseline's"
    if same < len(plain):
        summary += " (an engine that promises the distribution only need not give the same tokens)"
    return Check("same seed output", "pass" if same == len(plain) else "note", summary, data={"same": same})


def _frequencies(ours: CompletionsClient, theirs: CompletionsClient, prompt: str, samples: int, tick: Tick) -> Check:
    """The check of sampled outputs' beginnings: a chi-square test of homogeneity of both servers' counts."""
    requests = [
        {"prompt": prompt, "max_tokens": SAMPLE_TOKENS, "temperature": 1.0, "seed": seed} for seed in range(samples)
    ]
    other = [{**request, "seed": samples + i} for i, request in enumerate(requests)]  # independent of the baseline's
    a = Counter(_with_progress(tick, "baseline, samples", lambda: theirs.texts(requests, CONCURRENCY)))
    b = Counter(_with_progress(tick, "endpoint, samples", lambda: ours.texts(other, CONCURRENCY)))
    common = [text for text in {*a, *b} if a[text] + b[text] >= 10]
    table = np.array([[c[text] for text in common] + [samples - sum(c[text] for text in common)] for c in (a, b)])
    table = table[:, table.sum(axis=0) > 0]
    p_value = float(stats.chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0
    distance = float(np.abs(table[0] - table[1]).sum() / 2 / samples)
    return Check(
        "frequencies of samples",
        "fail" if p_value < SIGNIFICANCE else "pass",
        f"{samples} beginnings of {SAMPLE_TOKENS} tokens from each: p-value {p_value:.2g}, total variation "
        f"{distance:.3f} in {table.shape[1]} bins",
        data={"p_value": p_value, "total_variation": distance},
    )
