"""The likeliest tokens to come as a tree, from places where the last tokens occurred before.

After SuffixDecoding (Oliaro et al. 2024); docs/algorithms/suffix.md explains the scores. ``suffix_native`` takes the
same steps in the native library, and drafts the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from outrider.drafters.datastore import MAX_MATCH
from outrider.drafters.text.best_first import Children, best_first
from outrider.drafters.text.occurrences import Place
from outrider.verify.draft import Draft

OWN_LIMIT, OTHER_LIMIT = 16, 24  # places read in the request itself, and in other texts
FREE_NODES = 3  # drafted whatever their probability: a pass over four rows costs as much as over one
LEAST = 0.14  # lowest probability of further nodes: a row's share of a pass's cost, times tokens per pass
LEAST_EVER = 0.01  # nodes up to this probability are never drafted


def _confidence(least: float, most: float, rate: float = 0.28) -> list[float]:
    """The probability that the token after a single occurrence comes again, by match length."""
    return [0.0, *(most - (most - least) * math.exp(-rate * m) for m in range(MAX_MATCH))]


class Weights(NamedTuple):
    """Pitman-Yor parameters for the occurrences of one match length (Teh 2006).

    A token seen ``c`` times after ``n`` occurrences has probability ``(c - discount) / (n + strength)``. The
    remaining probability goes to occurrences of lower confidence.
    """

    confidence: float
    discount: float
    strength: float


def _weights(confidence: float) -> Weights:
    """The parameters with which a token seen after a single occurrence has probability ``confidence``."""
    strength = 0.6 * (1 - confidence)
    return Weights(confidence, 1 - confidence * (strength + 1), strength)


OWN = [_weights(c) for c in _confidence(0.32, 0.93)]
SHARED = [_weights(c) for c in _confidence(0.10, 0.60)]
STORED = [_weights(c) for c in _confidence(0.09, 0.60, 0.10)]  # fitted to held-out answers
COPIED = [_weights(c) for c in (0.2, 0.8, *[0.94] * (MAX_MATCH - 1))]  # fitted to edits of code and texts
EDITED = [_weights(0.95)] * (MAX_MATCH + 1)
TABLES = OWN, SHARED, STORED, COPIED, EDITED


class Continuation(NamedTuple):
    """A place that the last tokens occurred at, with the table of its confidence."""

    table: Sequence[Weights]  # by length of match, one of TABLES
    tokens: Sequence[int]
    end: int
    match: int


def continuations(tokens: Sequence[int], found: Iterable[Place], table: Sequence[Weights]) -> list[Continuation]:
    """The continuations of places in one text."""
    return [Continuation(table, tokens, end, match) for end, match in found]


class Candidate(NamedTuple):
    """A possible next token."""

    share: float  # its probability given its parent
    came_at: list[Continuation]  # the occurrences that it followed

    def continuations(self) -> list[Continuation]:
        """The same occurrences, extended by this token. Computed on demand: few candidates become nodes."""
        return [
            Continuation(table, tokens, end + 1, match + 1 if match < MAX_MATCH else match)
            for table, tokens, end, match in self.came_at
        ]


def predict(after: Sequence[Continuation], path: Sequence[int], own: Sequence[int]) -> dict[int, Candidate]:
    """The tokens that followed the occurrences ``after``, with probabilities that sum to less than 1.

    Occurrences of equal confidence form a group, in which tokens get probability by frequency. The most confident
    group comes first and leaves a rest to the others (prediction by partial matching). ``path`` continues the text
    ``own``, so that an occurrence that reaches the end of ``own`` continues into the path.
    """
    groups: dict[Weights, dict[int, list[Continuation]]] = {}  # occurrences by confidence and next token
    for place in after:
        table, tokens, end, match = place
        if end < len(tokens):
            token = tokens[end]
        elif tokens is own and end - len(own) < len(path):
            token = path[end - len(own)]
        else:
            continue
        if token < 0:  # the end of a text of the datastore
            continue
        groups.setdefault(table[match], {}).setdefault(token, []).append(place)
    found: dict[int, Candidate] = {}
    left = 1.0
    for weights in sorted(groups, reverse=True):  # the most confident first
        _, discount, strength = weights
        group = groups[weights]
        total = sum(map(len, group.values())) + strength
        for token, places in group.items():
            share = left * (len(places) - discount) / total
            known = found.get(token)
            found[token] = (
                Candidate(share, places) if known is None else Candidate(known.share + share, known.came_at + places)
            )
        left *= (strength + discount * len(group)) / total
        if left < 0.03:
            break
    return found


def grow(root: Sequence[Continuation], own: Sequence[int], budget: int, depth: int, *, branching: bool) -> Draft:
    """The likeliest tree of at most ``budget`` nodes and ``depth`` levels; a chain unless ``branching``.

    Beyond ``FREE_NODES`` nodes it ends where the next node is less likely than ``LEAST``, the cost of a row.
    """

    def expand(state: tuple[Candidate | None, tuple[int, ...], tuple[int, ...]]) -> Children[Any]:
        last, above, token = state
        path = above + token
        options = predict(root if last is None else last.continuations(), path, own)
        if not branching and options:
            best = max(options, key=lambda token: options[token].share)
            options = {best: options[best]}
        return [(token, option.share, (option, path, (token,))) for token, option in options.items()]

    def enough(nodes: int, probability: float) -> bool:
        return probability < LEAST and nodes >= FREE_NODES

    return best_first("suffix", (None, (), ()), expand, budget=budget, depth=depth, least=LEAST_EVER, enough=enough)
