"""Continues as this text, and earlier responses, did where they ended alike: frequency-scored trees.

After SuffixDecoding (Oliaro et al. 2024); how it scores and why is in docs/algorithms/suffix.md.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from outrider.core.draft import EMPTY, Draft
from outrider.drafters.api import Outcome, RequestView
from outrider.drafters.text.counts import log_counts
from outrider.drafters.text.responses import CAPACITY, Responses
from outrider.drafters.text.suffix_index import MAX_MATCH, Occurrence, SuffixIndex

OWN_LIMIT, SHARED_LIMIT = 16, 24  # occurrences looked at in the request itself, and in earlier responses
FREE_NODES = 3  # drafted whatever their probability: four rows cost what one costs
LEAST = 0.14  # probability of further nodes: the share of a run's cost that a row adds, times tokens a run
_NEGLIGIBLE = 0.01
_REUSED = 4  # tokens that agree where a response counts as used


def _confidence(least: float, most: float) -> list[float]:
    """How often the token after a lone occurrence comes again, by the length of its match."""
    return [0.0, *(most - (most - least) * math.exp(-0.28 * m) for m in range(MAX_MATCH))]


class _Weights(NamedTuple):
    """How far occurrences with one length of match are believed (Pitman-Yor; Teh 2006).

    A token seen ``c`` times after ``n`` occurrences has probability ``(c - discount) / (n + strength)``; what is
    left goes to less certain occurrences.
    """

    confidence: float
    discount: float
    strength: float


def _weights(confidence: float) -> _Weights:
    """Such that one occurrence has this confidence."""
    strength = 0.6 * (1 - confidence)
    return _Weights(confidence, 1 - confidence * (strength + 1), strength)


OWN = [_weights(c) for c in _confidence(0.32, 0.93)]
SHARED = [_weights(c) for c in _confidence(0.10, 0.60)]


class Place(NamedTuple):
    """Where a text went on, and how much that is believed."""

    weights: _Weights
    table: Sequence[_Weights]  # by length of match: OWN or SHARED
    tokens: Sequence[int]
    end: int
    match: int


def places(found: Iterable[Occurrence], table: Sequence[_Weights]) -> list[Place]:
    return [Place(table[o.match], table, o.tokens, o.end, o.match) for o in found]


class Candidate(NamedTuple):
    """A token that may come next."""

    share: float  # its probability after its parent
    places: list[Place]  # where it came next


def predict(after: Sequence[Place], path: Sequence[int], own: Sequence[int]) -> dict[int, Candidate]:
    """Tokens that followed the places, with probabilities that sum to less than 1.

    Places of equal confidence vote by frequency; each group of them takes its share of the probability and leaves
    the rest to the less confident ones (prediction by partial matching). ``path`` continues the text ``own``, so
    that a match which overlaps the end repeats with its period.
    """
    shares: dict[int, float] = {}
    where: dict[int, list[Place]] = {}
    left = 1.0
    for weights, group in groupby(sorted(after, key=lambda p: -p.weights.confidence), key=lambda p: p.weights):
        counts: Counter[int] = Counter()
        for place in group:
            at = place.end
            if at < len(place.tokens):
                token = place.tokens[at]
            elif place.tokens is own and at - len(own) < len(path):
                token = path[at - len(own)]
            else:
                continue
            counts[token] += 1
            match = min(place.match + 1, MAX_MATCH)
            where.setdefault(token, []).append(Place(place.table[match], place.table, place.tokens, at + 1, match))
        if not counts:
            continue
        total = counts.total() + weights.strength
        for token, count in counts.items():
            shares[token] = shares.get(token, 0.0) + left * (count - weights.discount) / total
        left *= (weights.strength + weights.discount * len(counts)) / total
        if left < 0.03:
            break
    return {token: Candidate(share, where[token]) for token, share in shares.items()}


def grow(root: Sequence[Place], own: Sequence[int], budget: int, depth: int, *, branching: bool) -> Draft:
    """The likeliest tree of at most ``budget`` nodes and ``depth`` levels, or the likeliest chain, best first.

    A node's probability is the product of the shares on its path. Growth ends where no further node is likely
    enough for the row it costs.
    """
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    heap: list[tuple[float, int, float, int, int, list[Place], tuple[int, ...]]] = []
    order = 0

    def offer(node: int, probability: float, after: Sequence[Place], path: tuple[int, ...]) -> None:
        nonlocal order
        options = predict(after, path, own)
        if not branching and options:
            best = max(options, key=lambda token: options[token].share)
            options = {best: options[best]}
        for token, (share, came) in options.items():
            if probability * share > _NEGLIGIBLE:
                order += 1  # ties go to the first found, which is the more recent
                heapq.heappush(heap, (-probability * share, order, share, node, token, came, path))

    if budget > 0 and depth > 0:
        offer(-1, 1.0, root, ())
    while heap and len(tokens) < budget:
        negative, _, share, parent, token, came, path = heapq.heappop(heap)
        if -negative < LEAST and len(tokens) >= FREE_NODES:
            break
        tokens.append(token)
        parents.append(parent)
        scores.append(share)
        if len(path) + 1 < depth and len(tokens) < budget:
            offer(len(tokens) - 1, -negative, came, (*path, token))
    return Draft(tuple(tokens), tuple(parents), None, "suffix", tuple(scores)) if tokens else EMPTY


@dataclass
class _State:
    request: RequestView
    index: SuffixIndex
    learned: int = 0  # places of the request's tokens that are in the index


class SuffixDrafter:
    """Drafts trees from the request's own tokens and from earlier responses with the same cache salt."""

    def __init__(self, vocab_size: int, capacity: int = CAPACITY) -> None:
        """``capacity``: tokens of earlier responses that are kept; 0 keeps none."""
        self._vocab_size = vocab_size
        self._states: dict[str, _State] = {}
        self.responses = Responses(capacity)

    def start(self, request: RequestView) -> None:
        self._states[request.id] = _State(request, SuffixIndex())

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return [self._propose(r, budget) for r, budget in zip(requests, budgets, strict=True)]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Nothing to do: the index follows the request's tokens."""

    def finish(self, request_id: str) -> None:
        state = self._states.pop(request_id, None)
        if state is not None:
            request = state.request
            self.responses.add(request.cache_salt, request_id, request.tokens[request.prompt_length :])

    def _propose(self, request: RequestView, budget: int) -> Draft:
        tokens, state = request.tokens, self._states[request.id]
        state.index.extend(0, tokens, state.learned, len(tokens))  # not the very end, where nothing follows
        state.learned = len(tokens)
        tail = tokens[-MAX_MATCH:]
        shared = self.responses.find(request.cache_salt, tail, SHARED_LIMIT)
        self.responses.used(o.text for o in shared if o.match >= _REUSED)
        root = [*places(state.index.find(tail, OWN_LIMIT), OWN), *places(shared, SHARED)]
        if request.speculation.counts_as_q:
            return self._sample(request, root, min(budget, request.depth_limit))
        return grow(root, tokens, budget, request.depth_limit, branching=request.draws().takes_trees)

    def _sample(self, request: RequestView, root: Sequence[Place], budget: int) -> Draft:
        """A chain drawn from the shares, which are its ``q``."""
        draws = request.draws()
        drafted: list[int] = []
        rows: list[Tensor] = []
        scores: list[float] = []
        options: Mapping[int, Candidate] = predict(root, (), request.tokens)
        while options and len(drafted) < budget:
            rows.append(log_counts({token: option.share for token, option in options.items()}, self._vocab_size))
            token = draws.draw(rows[-1], depth=len(drafted), node=len(drafted))
            drafted.append(token)
            scores.append(options[token].share)
            options = predict(options[token].places, drafted, request.tokens)
        return Draft.chain(drafted, q_logits=torch.stack(rows), source="suffix", scores=scores) if drafted else EMPTY
