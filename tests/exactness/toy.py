"""A language model small enough to know exactly, draft sources for it, and the loop that runs them.

``exact`` enumerates the distribution over all sequences, ``generate`` samples one by speculative decoding, and
``p_value`` compares a histogram of samples with the enumeration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from outrider.config import SamplingParams
from outrider.core.distribution import Context, TargetRows
from outrider.core.draft import EMPTY, Draft
from outrider.core.noise import Noise
from outrider.core.tree import path_to
from outrider.core.verify import Draws, Verifier
from outrider.models.toy import sequence_probs

VOCAB = 4
PROMPT = (0,)

Table = Tensor  # float32 [VOCAB, VOCAB]: logits of the next token by the last one
Source = Callable[[Context, Draws], Draft]


def table(seed: int, scale: float = 1.5) -> Table:
    return torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


TARGET = table(1)
DRAFT = table(4)  # far enough from the target for mistakes to show


def exact(params: SamplingParams, length: int) -> NDArray[np.float64]:
    """Probability of each sequence of ``length`` tokens after ``PROMPT``, in lexicographic order."""
    return sequence_probs(TARGET, params, PROMPT, length).numpy()


def generate(params: SamplingParams, verify: Verifier, source: Source, noise: Noise, length: int) -> tuple[int, ...]:
    """``length`` tokens by speculative decoding: draft, score, verify, commit."""
    output: list[int] = []
    while len(output) < length:
        base = len(PROMPT) + len(output)
        context = Context(PROMPT, tuple(output))
        draft = source(context, Draws(noise, base, verify.coupled))
        last = [(*PROMPT, *output)[-1], *draft.tokens]
        p = TargetRows(TARGET[last], params, context, draft)
        verdict = verify(draft, p, noise, base)
        output += [*(draft.tokens[i] for i in verdict.path), verdict.token]
    return tuple(output[:length])


def p_value(expected: NDArray[np.float64], samples: Sequence[tuple[int, ...]]) -> float:
    """Chi-square p-value of sampled sequences; sequences expected fewer than five times are counted as one."""
    index = [int("".join(map(str, tokens)), VOCAB) for tokens in samples]
    counts = np.bincount(index, minlength=len(expected))
    if counts[expected == 0].any():
        return 0.0  # an impossible sequence
    common = expected * len(samples) >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], max(1 - expected[common].sum(), 0)) * len(samples)
    keep = wanted > 1e-6 * len(samples)
    return float(stats.chisquare(observed[keep], wanted[keep] * observed[keep].sum() / wanted[keep].sum()).pvalue)


def plain(context: Context, draws: Draws) -> Draft:
    return EMPTY


def model(k: int, temperature: float = 1.0, *, with_q: bool = True) -> Source:
    """A chain drawn from the draft table, with or without telling the verifier its q."""

    def propose(context: Context, draws: Draws) -> Draft:
        tokens: list[int] = []
        rows: list[Tensor] = []
        for node in range(k):
            last = (*PROMPT, *context.output, *tokens)[-1]
            row = torch.log_softmax(DRAFT[last] / temperature, -1)
            rows.append(row)
            tokens.append(draws.draw(row, depth=node, node=node))
        return Draft.chain(tokens, q=torch.stack(rows) if with_q else None)

    return propose


def chosen(k: int, rule: Callable[[Tensor], Tensor], q: Callable[[int], Tensor] | None = None) -> Source:
    """A chain of tokens picked by ``rule`` from the target's own logits; ``q(token)`` makes its row of q."""

    def propose(context: Context, draws: Draws) -> Draft:
        tokens: list[int] = []
        for _ in range(k):
            last = (*PROMPT, *context.output, *tokens)[-1]
            tokens.append(int(rule(TARGET[last])))
        return Draft.chain(tokens, q=torch.stack([q(t) for t in tokens]) if q else None)

    return propose


def one_hot(token: int) -> Tensor:
    return torch.full((VOCAB,), -torch.inf).index_fill_(0, torch.tensor(token), 0.0)


def denies(token: int) -> Tensor:
    """A q that says its own token was impossible."""
    return torch.zeros(VOCAB).index_fill_(0, torch.tensor(token), -torch.inf)


def broken(token: int) -> Tensor:
    return torch.full((VOCAB,), torch.nan)


def best(k: int) -> Source:
    return chosen(k, torch.argmax)


def worst(k: int) -> Source:
    return chosen(k, torch.argmin)


def moody(context: Context, draws: Draws) -> Draft:
    """Draft length and kind depend on what was accepted before, as a controller's do."""
    n = sum(context.output) + len(context.output)
    return (plain, model(1), model(3), model(2, 0.5))[n % 4](context, draws)


def tree(context: Context, draws: Draws) -> Draft:
    """Two or three children per node, two levels, one of them a duplicate; one coupled draw at each level."""
    last = (*PROMPT, *context.output)[-1]
    first = draws.draw(DRAFT[last], depth=0, node=0)
    parents = (-1, -1, -1, 0, 0, 1, 1)
    tokens = [first, (first + 1) % VOCAB, first]
    for node in range(3, len(parents)):
        above = tokens[path_to(parents, parents[node])[-1]]
        drawn = draws.draw(DRAFT[above], depth=1, node=node)
        tokens.append((drawn + node) % VOCAB if node % 2 == 0 else drawn)
    return Draft(tuple(tokens), parents)
