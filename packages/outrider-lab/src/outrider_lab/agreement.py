"""Measures a draft's α (corollary 3.6) on the target's own text, without any speculation.

Leviathan et al. (2023, section 4.2, tables 3 and 5) evaluate α = E Σ min(p, q) on 10,000 tokens that the target wrote.
``q`` may come from any source of distributions (``Predict``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from outrider.cache import CacheSpec
from outrider.config import SamplingParams
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.arrays import Floats, host
from outrider.verify.distribution import Context, log_weights, probs
from outrider_lab import theory

LENIENCES = (1.0, 0.5, 0.3, 0.1)

ProbRows: TypeAlias = NDArray[np.float64]
"""Probabilities [positions, vocab]."""


@dataclass(frozen=True)
class TargetText:
    """A prompt and the target's continuation."""

    prompt: list[int]
    output: list[int]


Predict: TypeAlias = Callable[[TargetText, SamplingParams], ProbRows]
"""Distributions [positions, vocab] of a text's output tokens, each given all tokens before it."""


def model_probs(model: Model, vocab_size: int) -> Predict:
    """A model's predictions, by one forward pass a text. Positions beyond its context are left out."""

    def predict(text: TargetText, params: SamplingParams) -> ProbRows:
        tokens = [*text.prompt, *text.output][: model.config.max_seq_len]
        count = len(tokens) - len(text.prompt)
        if count < 1:
            return np.zeros((0, vocab_size))
        logits = forward_logits(model, tokens[:-1], len(text.prompt) - 1)[:, :vocab_size]
        contexts = [Context(text.prompt, text.output[:i]) for i in range(count)]
        return probs(log_weights(logits, [params] * count, contexts))

    return predict


def forward_logits(model: Model, tokens: Sequence[int], first: int) -> Floats:
    """Logits after each token from ``tokens[first]`` on, by one forward pass: float32 [len(tokens) - first, vocab]."""
    cache = model.new_cache(CacheSpec(max_seq_len=len(tokens) + 1))
    slot = cache.allocate()
    cache.extend(slot, len(tokens))
    rows = range(first, len(tokens))
    batch = ForwardBatch(tokens, range(len(tokens)), (Span(slot, 0, len(tokens)),), logit_rows=rows)
    return host(model.forward(batch, cache).logits)


class NgramCounts:
    """Unigram and bigram counts over texts; a text's own counts are left out while it is predicted."""

    def __init__(self, texts: Sequence[TargetText], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._single: Counter[int] = Counter()
        self._pairs: dict[int, Counter[int]] = defaultdict(Counter)
        for text in texts:
            self._add(text, 1)

    def unigram(self, text: TargetText, params: SamplingParams) -> ProbRows:
        """The frequency of each token in the other texts; at temperature 0 the most frequent one."""
        self._add(text, -1)
        row = self._standard(self._single, params)
        self._add(text, 1)
        return np.tile(row, (len(text.output), 1))

    def bigram(self, text: TargetText, params: SamplingParams) -> ProbRows:
        """The frequency of each token after the one before it, mixed with the unigram (Witten and Bell 1991).

        The unigram's share grows with the number of different tokens that have followed the token.
        """
        self._add(text, -1)
        before = [text.prompt[-1], *text.output[:-1]]
        rows = [self._standard(self._mixed(+self._pairs[token]), params) for token in before]
        self._add(text, 1)
        return np.stack(rows)

    def _mixed(self, followers: Counter[int]) -> Mapping[int, float]:
        """Weights of the next token from the counts of followers."""
        different = max(1, len(followers))
        total = self._single.total()
        return {
            token: followers[token] + different * count / total for token, count in self._single.items() if count > 0
        }

    def _add(self, text: TargetText, sign: int) -> None:
        for before, token in zip([text.prompt[-1], *text.output], text.output, strict=False):
            self._single[token] += sign
            self._pairs[before][token] += sign

    def _standard(self, counts: Mapping[int, float], params: SamplingParams) -> NDArray[np.float64]:
        row = np.zeros(self._vocab_size)
        for token, count in counts.items():
            row[token] = count
        if params.greedy:
            likeliest: NDArray[np.float64] = np.eye(1, self._vocab_size, int(row.argmax()))[0]
            return likeliest
        with np.errstate(divide="ignore"):
            return probs((np.log(row) / params.temperature).astype(np.float32))


@dataclass
class Agreement:
    """Sums over positions of one draft source's acceptance: by rejection, by matching (coupled), by lenience."""

    positions: int = 0
    rejection: float = 0.0
    coupled: float = 0.0
    lenient: dict[float, float] = field(default_factory=lambda: dict.fromkeys(LENIENCES, 0.0))

    def add(self, p: ProbRows, q: ProbRows, params: SamplingParams) -> None:
        p = p[: len(q)]
        self.positions += len(q)
        self.rejection += float(theory.acceptance(p, q).sum())
        if params.greedy:  # both one-hot: the same draw or not, whatever the noise
            self.coupled += float(theory.acceptance(p, q).sum())
        else:
            self.coupled += float(theory.coupled_acceptance(p, q).sum())
            for lenience in LENIENCES:
                self.lenient[lenience] += float(theory.lenient_acceptance(p, q, lenience).sum())

    def mean(self, total: float) -> float:
        """``total``, one of the sums, per position."""
        return total / max(1, self.positions)


def measure_agreement(
    texts: Sequence[TargetText], params: SamplingParams, target: Predict, drafts: dict[str, Predict]
) -> Iterator[dict[str, Agreement]]:
    """Running totals by draft source, after each text; ``params``: the sampling options that wrote the texts."""
    totals = {name: Agreement() for name in drafts}
    bare = replace(params, seed=None)
    for text in texts:
        p = target(text, bare)
        for name, predict in drafts.items():
            totals[name].add(p, predict(text, bare), bare)
        yield totals
