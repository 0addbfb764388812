"""A language model small enough to know exactly, draft sources for it, and the loop that runs them.

``exact`` enumerates the distribution over all sequences, ``generate`` samples one by speculative decoding, and
``p_value`` compares a histogram of samples with the enumeration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from outrider.config import SamplingParams, SpeculationParams
from outrider.models.toy import sequence_probs
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.noise import Noise
from outrider.verify.tree import path_to
from outrider.verify.verifiers import make_verifier
from outrider.verify.verifiers.base import DraftSampler, Siblings, Verifier
from outrider.verify.verifiers.catalog import VERIFIERS
from outrider.verify.verifiers.recursive import Recursive
from tests.arrays import Floats, full, log, log_softmax

VOCAB = 4
PROMPT = (0,)

BY_NAME: dict[str, Verifier] = {
    name: make_verifier(SpeculationParams(verifier=name))  # type: ignore[arg-type]
    for name in VERIFIERS
}
EXACT = [name for name, verifier in BY_NAME.items() if verifier.exact]
LOSSY = [name for name, verifier in BY_NAME.items() if not verifier.exact]
UNCOUPLED = [name for name in EXACT if not BY_NAME[name].shares_noise]
ON_TREES = [name for name in EXACT if BY_NAME[name].takes_trees]

Table = Floats  # float32 [VOCAB, VOCAB]: logits of the next token by the last one
Source = Callable[[Context, DraftSampler], Draft]


def table(seed: int, scale: float = 1.5) -> Table:
    return torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)).numpy() * np.float32(scale)


TARGET = table(1)
DRAFT = table(4)  # far enough from the target for mistakes to show


def exact(params: SamplingParams, length: int) -> NDArray[np.float64]:
    """Probability of each sequence of ``length`` tokens after ``PROMPT``, in lexicographic order."""
    return sequence_probs(TARGET, params, PROMPT, length)


def generate(params: SamplingParams, verify: Verifier, source: Source, noise: Noise, length: int) -> tuple[int, ...]:
    """``length`` tokens by speculative decoding: draft, score, verify, commit."""
    output: tuple[int, ...] = ()
    while len(output) < length:
        output += step(params, verify, source, noise, output)
    return output[:length]


def step(
    params: SamplingParams, verify: Verifier, source: Source, noise: Noise, output: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """The tokens that one step adds to ``output``."""
    base = len(PROMPT) + len(output)
    context = Context(PROMPT, output)
    draft = source(context, DraftSampler(noise, base, verify.shares_noise, verify.siblings))
    last = [(*PROMPT, *output)[-1], *draft.tokens]
    p = TargetRows(TARGET[last], params, context, draft)
    verdict = verify(draft, p, noise, base)
    return (*(draft.tokens[i] for i in verdict.path), verdict.token)


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


def plain(context: Context, draws: DraftSampler) -> Draft:
    return EMPTY


def model(k: int, temperature: float = 1.0, *, with_q: bool = True) -> Source:
    """A chain drawn from the draft table, with or without telling the verifier its q."""

    def propose(context: Context, draws: DraftSampler) -> Draft:
        tokens: list[int] = []
        rows: list[Floats] = []
        for node in range(k):
            last = (*PROMPT, *context.output, *tokens)[-1]
            row = log_softmax(DRAFT[last] / temperature)
            rows.append(row)
            tokens.append(draws.draw(row, depth=node, node=node))
        return Draft.chain(tokens, q_logits=np.stack(rows) if with_q else None)

    return propose


def chosen(k: int, rule: Callable[[Floats], np.intp], q: Callable[[int], Floats] | None = None) -> Source:
    """A chain of tokens picked by ``rule`` from the target's own logits; ``q(token)`` makes its row of q."""

    def propose(context: Context, draws: DraftSampler) -> Draft:
        tokens: list[int] = []
        for _ in range(k):
            last = (*PROMPT, *context.output, *tokens)[-1]
            tokens.append(int(rule(TARGET[last])))
        return Draft.chain(tokens, q_logits=np.stack([q(t) for t in tokens]) if q else None)

    return propose


def one_hot(token: int) -> Floats:
    return log(np.eye(VOCAB)[token])


def denies(token: int) -> Floats:
    """A q that says its own token was impossible."""
    return log(1 - np.eye(VOCAB)[token])


def broken(token: int) -> Floats:
    return full(VOCAB, math.nan)


def best(k: int) -> Source:
    return chosen(k, np.argmax)


def worst(k: int) -> Source:
    return chosen(k, np.argmin)


def moody(context: Context, draws: DraftSampler) -> Draft:
    """Draft length and kind depend on what was accepted before, as a controller's do."""
    n = sum(context.output) + len(context.output)
    return (plain, model(1), model(3), model(2, 0.5))[n % 4](context, draws)


def tree(context: Context, draws: DraftSampler) -> Draft:
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


def static(*widths: int, temperature: float = 1.0) -> Source:
    """Every node at depth d has ``widths[d]`` children, drawn from the draft table as the verifier wants them."""

    def propose(context: Context, draws: DraftSampler) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[Floats] = []
        level = [-1]
        for depth, width in enumerate(widths):
            above, level = level, []
            for parent in above:
                last = (*PROMPT, *context.output)[-1] if parent < 0 else tokens[parent]
                row = log_softmax(DRAFT[last] / temperature)
                drawn = draws.siblings(row, width, depth=depth, node=len(tokens))
                level += range(len(tokens), len(tokens) + len(drawn.tokens))
                tokens += drawn.tokens
                parents += [parent] * len(drawn.tokens)
                rows += drawn.rows
        return Draft(tuple(tokens), tuple(parents), np.stack(rows))

    return propose


def several(*tables: Table) -> Source:
    """A child from each of several draft models, and one below each of them, all drawn independently."""

    def propose(context: Context, draws: DraftSampler) -> Draft:
        last = (*PROMPT, *context.output)[-1]
        rows = [log_softmax(table[last]) for table in tables]
        tokens = [draws.draw(row, depth=0, node=node) for node, row in enumerate(rows)]
        k = len(tokens)
        rows += [log_softmax(table[token]) for table, token in zip(tables, tokens, strict=True)]
        tokens += [draws.draw(row, depth=1, node=k + node) for node, row in enumerate(rows[k:])]
        return Draft(tuple(tokens), (*[-1] * k, *range(k)), np.stack(rows))

    return propose


def mixed(context: Context, draws: DraftSampler) -> Draft:
    """Two siblings drawn from q around one that is not, and below the first one that is not."""
    last = (*PROMPT, *context.output)[-1]
    row, none = log_softmax(DRAFT[last]), full(VOCAB, math.nan)
    drawn = draws.siblings(row, 2, depth=0, node=0)
    (first, third), (one, three) = drawn.tokens, drawn.rows
    return Draft((first, 1, third, 2), (-1, -1, -1, 0), np.stack([one, none, three, none]))


def grown(context: Context, draws: DraftSampler) -> Draft:
    """A tree whose shape depends on tokens drawn: a child below the first only if that is even, two if it is 2."""
    last = (*PROMPT, *context.output)[-1]
    row = log_softmax(DRAFT[last])
    first = draws.siblings(row, 2, depth=0, node=0)
    tokens, rows, parents = first.tokens, first.rows, [-1] * len(first.tokens)
    width = {0: 1, 2: 2}.get(tokens[0], 0)
    if width:
        below = log_softmax(DRAFT[tokens[0]])
        drawn = draws.siblings(below, width, depth=1, node=len(tokens))
        tokens += drawn.tokens
        rows += drawn.rows
        parents += [0] * len(drawn.tokens)
    return Draft(tuple(tokens), tuple(parents), np.stack(rows))


def best_first(n: int) -> Source:
    """The ``n`` nodes of best joint probability under the draft table, found without a draw: a dynamic tree."""

    def propose(context: Context, draws: DraftSampler) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        first = log_softmax(DRAFT[(*PROMPT, *context.output)[-1]]).tolist()
        open_ = [(score, token, -1) for token, score in enumerate(first)]
        for node in range(n):
            best = max(open_)
            open_.remove(best)
            score, token, parent = best
            tokens.append(token)
            parents.append(parent)
            below = log_softmax(DRAFT[token]).tolist()
            open_ += [(score + more, child, node) for child, more in enumerate(below)]
        return Draft(tuple(tokens), tuple(parents))

    return propose


def pruned(keep: int, *, with_q: bool = False) -> Source:
    """A static tree of which the ``keep`` nodes with the best joint probability are kept; a lie if it tells its q."""
    whole = static(2, 1)

    def propose(context: Context, draws: DraftSampler) -> Draft:
        draft = whole(context, draws)
        assert draft.q_logits is not None
        joint: list[float] = []
        for i, parent in enumerate(draft.parents):
            joint.append(float(draft.q_logits[i, draft.tokens[i]]) + (joint[parent] if parent >= 0 else 0.0))
        kept = sorted(sorted(range(len(draft)), key=lambda i: -joint[i])[:keep])  # a parent beats its children
        place = {-1: -1} | {node: i for i, node in enumerate(kept)}
        tokens, parents = (draft.tokens[i] for i in kept), (place[draft.parents[i]] for i in kept)
        return Draft(tuple(tokens), tuple(parents), draft.q_logits[kept] if with_q else None)

    return propose


def merged(*tables: Table) -> Source:
    """A child from each of several draft models without duplicates: true for ratios without replacement only."""

    def propose(context: Context, draws: DraftSampler) -> Draft:
        rows = np.stack([log_softmax(table[(*PROMPT, *context.output)[-1]]) for table in tables])
        tokens = [draws.draw(row, depth=0, node=node) for node, row in enumerate(rows)]
        kept = [i for i, token in enumerate(tokens) if token not in tokens[:i]]
        return Draft(tuple(tokens[i] for i in kept), (-1,) * len(kept), rows[kept])

    return propose


def drawn_as_if(source: Source, manner: Siblings) -> Source:
    """The source, with siblings drawn in this way whatever the verifier asks for."""
    return lambda context, draws: source(context, replace(draws, sibling_sampling=manner))


class Forgetful(Recursive):
    """Wrong on purpose: judges every child against p itself, whatever was refused before it."""

    def _judge(
        self, draft: Draft, siblings: Sequence[int], p: NDArray[np.float64], noise: Noise, position: int
    ) -> tuple[int | None, NDArray[np.float64]]:
        node, left = None, p
        for i in siblings:
            node, left = super()._judge(draft, [i], p, noise, position)
            if node is not None:
                break
        return node, left


class Redrawn(Recursive):
    """Wrong on purpose: draws the token after a refusal from p."""

    def _judge(
        self, draft: Draft, siblings: Sequence[int], p: NDArray[np.float64], noise: Noise, position: int
    ) -> tuple[int | None, NDArray[np.float64]]:
        return super()._judge(draft, siblings, p, noise, position)[0], p


class ReplacementRatios(Recursive):
    """Wrong on purpose: judges children drawn without replacement, in draft order, as if drawn independently."""

    def _judge(
        self, draft: Draft, siblings: Sequence[int], p: NDArray[np.float64], noise: Noise, position: int
    ) -> tuple[int | None, NDArray[np.float64]]:
        return Recursive(self.name, Siblings.INDEPENDENT)._judge(draft, siblings, p, noise, position)
