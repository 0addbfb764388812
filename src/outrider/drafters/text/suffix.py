"""Continues as this text, and earlier responses, did where they ended alike: frequency-scored trees.

After SuffixDecoding (Oliaro et al. 2024); how it scores and why is in docs/algorithms/suffix.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from outrider.core.draft import Draft
from outrider.drafters.api import Drafter, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.text.best_first import Children, best_first
from outrider.drafters.text.counts import sampled_chain
from outrider.drafters.text.responses import TOKEN_BYTES, Responses
from outrider.drafters.text.suffix_index import MAX_MATCH, Occurrence, SuffixIndex
from outrider.utils.domains import Domains, Lease

CAPACITY = (1 << 16) * TOKEN_BYTES  # bytes of earlier responses
OWN_LIMIT, SHARED_LIMIT = 16, 24  # occurrences looked at in the request itself, and in earlier responses
FREE_NODES = 3  # drafted whatever their probability: four rows cost what one costs
LEAST = 0.14  # probability of further nodes: the share of a run's cost that a row adds, times tokens a run
_LEAST_EVER = 0.01  # probability of nodes that are never drafted
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


class Continuation(NamedTuple):
    """Where a text went on, and how much that is believed."""

    weights: _Weights
    table: Sequence[_Weights]  # by length of match: OWN or SHARED
    tokens: Sequence[int]
    end: int
    match: int


def continuations(found: Iterable[Occurrence], table: Sequence[_Weights]) -> list[Continuation]:
    return [Continuation(table[o.match], table, o.tokens, o.end, o.match) for o in found]


class Candidate(NamedTuple):
    """A token that may come next."""

    share: float  # its probability after its parent
    continuations: list[Continuation]  # where it came next


def predict(after: Sequence[Continuation], path: Sequence[int], own: Sequence[int]) -> dict[int, Candidate]:
    """Tokens that followed the places, with probabilities that sum to less than 1.

    Places of equal confidence vote by frequency; each group of them takes its share of the probability and leaves
    the rest to the less confident ones (prediction by partial matching). ``path`` continues the text ``own``, so
    that a match which overlaps the end repeats with its period.
    """
    shares: dict[int, float] = {}
    where: dict[int, list[Continuation]] = {}
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
            where.setdefault(token, []).append(
                Continuation(place.table[match], place.table, place.tokens, at + 1, match)
            )
        if not counts:
            continue
        total = counts.total() + weights.strength
        for token, count in counts.items():
            shares[token] = shares.get(token, 0.0) + left * (count - weights.discount) / total
        left *= (weights.strength + weights.discount * len(counts)) / total
        if left < 0.03:
            break
    return {token: Candidate(share, where[token]) for token, share in shares.items()}


def grow(root: Sequence[Continuation], own: Sequence[int], budget: int, depth: int, *, branching: bool) -> Draft:
    """The likeliest tree of at most ``budget`` nodes and ``depth`` levels, or the likeliest chain.

    It ends where no further node is likely enough for the row it costs.
    """

    def expand(state: tuple[Sequence[Continuation], tuple[int, ...], tuple[int, ...]]) -> Children[Any]:
        after, above, last = state
        path = (*above, *last)
        options = predict(after, path, own)
        if not branching and options:
            best = max(options, key=lambda token: options[token].share)
            options = {best: options[best]}
        return [(token, share, (came, path, (token,))) for token, (share, came) in options.items()]

    def enough(nodes: int, probability: float) -> bool:
        return probability < LEAST and nodes >= FREE_NODES

    return best_first("suffix", (root, (), ()), expand, budget=budget, depth=depth, least=_LEAST_EVER, enough=enough)


@dataclass
class _State:
    request: RequestView
    index: SuffixIndex
    earlier: Lease[Responses]
    learned: int = 0  # positions of the request's tokens that are in the index


def build(context: DrafterContext) -> Drafter:
    """The source ``suffix``."""
    return SuffixDrafter(context.vocab_size)


class SuffixDrafter(SingleRequestDrafter):
    """Drafts trees from the request's own tokens and from earlier responses with the same cache salt."""

    def __init__(self, vocab_size: int, capacity: int = CAPACITY) -> None:
        """``capacity``: bytes of earlier responses that are kept, of all domains together; 0 keeps none."""
        self._vocab_size = vocab_size
        self._states: dict[str, _State] = {}
        self.responses = Domains(Responses, capacity)

    def start(self, request: RequestView) -> None:
        earlier = self.responses.open(request.cache_salt, request.tenant)
        self._states[request.id] = _State(request, SuffixIndex(), earlier)

    def finish(self, request_id: str) -> None:
        state = self._states.pop(request_id, None)
        if state is not None:
            request = state.request
            response = request.tokens[request.prompt_length :]
            if self.responses.fits(len(response) * TOKEN_BYTES):  # a longer one would push out all others, and itself
                state.earlier.store.add(request_id, response)
            self.responses.close(state.earlier)

    def draft(self, request: RequestView, budget: int) -> Draft:
        tokens, state = request.tokens, self._states[request.id]
        state.index.extend(0, tokens, state.learned, len(tokens))  # not the very end, where nothing follows
        state.learned = len(tokens)
        tail = tokens[-MAX_MATCH:]
        earlier = state.earlier.store
        shared = earlier.find(tail, SHARED_LIMIT)
        earlier.used(o.text for o in shared if o.match >= _REUSED)
        root = [*continuations(state.index.find(tail, OWN_LIMIT), OWN), *continuations(shared, SHARED)]
        if request.speculation.counts_as_q:
            return self._sampled_chain(request, root, min(budget, request.depth_limit))
        return grow(root, tokens, budget, request.depth_limit, branching=request.draws().takes_trees)

    def _sampled_chain(self, request: RequestView, root: Sequence[Continuation], budget: int) -> Draft:
        """A chain drawn from the shares, which are its ``q``."""
        options: Mapping[int, Candidate] = {}

        def after(drafted: Sequence[int]) -> dict[int, float]:
            nonlocal options
            options = predict(options[drafted[-1]].continuations if drafted else root, drafted, request.tokens)
            return {token: option.share for token, option in options.items()}

        return sampled_chain("suffix", request.draws(), after, budget, self._vocab_size)
