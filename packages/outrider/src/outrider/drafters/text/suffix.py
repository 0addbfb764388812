"""Frequency-scored trees from occurrences of the last tokens in the request, earlier responses and a datastore.

After SuffixDecoding (Oliaro et al. 2024); docs/algorithms/suffix.md explains the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from outrider.drafters.api import Drafter, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.datastore import MAX_MATCH, Datastore, Occurrence
from outrider.drafters.shared_answers import SharedAnswers
from outrider.drafters.text.best_first import Children, best_first
from outrider.drafters.text.counts import sampled_chain
from outrider.drafters.text.edited_copy import EditedCopy
from outrider.drafters.text.responses import TOKEN_BYTES, Responses
from outrider.drafters.text.suffix_index import SuffixIndex
from outrider.utils.partitioned_store import Handle, PartitionedStore
from outrider.verify.draft import Draft

CAPACITY = (1 << 16) * TOKEN_BYTES  # bytes of earlier responses
OWN_LIMIT, SHARED_LIMIT = 16, 24  # occurrences read in the request itself, and in other responses
FREE_NODES = 3  # drafted whatever their probability: a pass over four rows costs as much as over one
LEAST = 0.14  # lowest probability of further nodes: a row's share of a pass's cost, times tokens per pass
_LEAST_EVER = 0.01  # nodes up to this probability are never drafted
_REUSED = 4  # matching tokens from which a response counts as used


def _confidence(least: float, most: float, rate: float = 0.28) -> list[float]:
    """The probability that the token after a single occurrence comes again, by match length."""
    return [0.0, *(most - (most - least) * math.exp(-rate * m) for m in range(MAX_MATCH))]


class _Weights(NamedTuple):
    """Pitman-Yor parameters for the occurrences of one match length (Teh 2006).

    A token seen ``c`` times after ``n`` occurrences has probability ``(c - discount) / (n + strength)``. The
    remaining probability goes to occurrences of lower confidence.
    """

    confidence: float
    discount: float
    strength: float


def _weights(confidence: float) -> _Weights:
    """The parameters with which a token seen after a single occurrence has probability ``confidence``."""
    strength = 0.6 * (1 - confidence)
    return _Weights(confidence, 1 - confidence * (strength + 1), strength)


OWN = [_weights(c) for c in _confidence(0.32, 0.93)]
SHARED = [_weights(c) for c in _confidence(0.10, 0.60)]
STORED = [_weights(c) for c in _confidence(0.09, 0.60, 0.10)]  # fitted to held-out answers
COPIED = [_weights(c) for c in (0.2, 0.8, *[0.94] * (MAX_MATCH - 1))]  # fitted to edits of code and texts
EDITED = [_weights(0.95)] * (MAX_MATCH + 1)


class Continuation(NamedTuple):
    """An occurrence of the last tokens, with the table of its confidence."""

    table: Sequence[_Weights]  # by length of match: OWN, SHARED, STORED, COPIED or EDITED
    tokens: Sequence[int]
    end: int
    match: int


def continuations(found: Iterable[Occurrence], table: Sequence[_Weights]) -> list[Continuation]:
    return [Continuation(table, o.tokens, o.end, o.match) for o in found]


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
    groups: dict[_Weights, dict[int, list[Continuation]]] = {}  # occurrences by confidence and next token
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

    return best_first("suffix", (None, (), ()), expand, budget=budget, depth=depth, least=_LEAST_EVER, enough=enough)


@dataclass
class _SuffixState:
    request: RequestView
    index: SuffixIndex
    earlier: Handle[Responses]
    copy: EditedCopy
    stored: Datastore | None


def build(context: DrafterContext) -> Drafter:
    """The source ``suffix``."""
    return SuffixDrafter(context.vocab_size, datastore=context.datastore)


class SuffixDrafter(SingleRequestDrafter):
    """Drafts trees from the request's own tokens, earlier responses with the same cache salt, and a datastore."""

    def __init__(
        self, vocab_size: int, capacity: int = CAPACITY, datastore: Datastore | SharedAnswers | None = None
    ) -> None:
        """``capacity``: bytes of earlier responses kept over all domains; 0 keeps none."""
        self._vocab_size, self.datastore = vocab_size, datastore
        if isinstance(datastore, SharedAnswers):
            datastore.load()
        self._states: dict[str, _SuffixState] = {}
        self.responses = PartitionedStore(Responses, capacity)
        self.on_response: Callable[[str, str, Sequence[int]], None] | None = None
        """Called with each learned response: its domain, its tenant, its tokens."""

    def learn(self, name: str, domain: str, tenant: str, response: Sequence[int]) -> None:
        """Learn a response of another engine; ``name`` must differ from every request id."""
        if self.responses.fits(len(response) * TOKEN_BYTES):
            earlier = self.responses.open(domain, tenant)
            earlier.store.add(name, response)
            self.responses.close(earlier)

    def start(self, request: RequestView) -> None:
        earlier = self.responses.open(request.cache_salt, request.tenant)
        copy = EditedCopy(request.tokens, request.prompt_length)
        stored = self.datastore.store if isinstance(self.datastore, SharedAnswers) else self.datastore
        self._states[request.id] = _SuffixState(request, SuffixIndex(), earlier, copy, stored)

    def finish(self, request_id: str) -> None:
        state = self._states.pop(request_id, None)
        if state is not None:
            request = state.request
            response = request.tokens[request.prompt_length :]
            if self.responses.fits(len(response) * TOKEN_BYTES):  # a larger one would evict all responses
                state.earlier.store.add(request_id, response)
                if self.on_response is not None:
                    self.on_response(request.cache_salt, request.tenant, response)
            self.responses.close(state.earlier)
        if isinstance(self.datastore, SharedAnswers):
            self.datastore.begin()  # not before: the first token of a first start is no later for it

    def draft(self, request: RequestView, budget: int) -> Draft:
        tokens, state = request.tokens, self._states[request.id]
        state.copy.follow(state.index)
        tail = tokens[-MAX_MATCH:]
        earlier = state.earlier.store
        shared = earlier.find(tail, SHARED_LIMIT)
        earlier.used(o.text for o in shared if o.match >= _REUSED)
        own = state.index.find(tail, OWN_LIMIT)
        root = [
            Continuation(EDITED if edited else COPIED, text, end, min(match, MAX_MATCH))
            for text, end, match, edited in state.copy.expected(budget)
        ]
        known = {place.end for place in root if place.tokens is tokens}
        root += continuations((o for o in own if o.end not in known), OWN)
        root += continuations(shared, SHARED)
        if state.stored is not None:
            root += continuations(state.stored.find(tail, SHARED_LIMIT), STORED)
        if request.speculation.counts_as_q:
            return self._sampled_chain(request, root, min(budget, request.depth_limit))
        return grow(root, tokens, budget, request.depth_limit, branching=request.draws().takes_trees)

    def _sampled_chain(self, request: RequestView, root: Sequence[Continuation], budget: int) -> Draft:
        """A chain drawn from the candidates' shares, its ``q``."""
        options: Mapping[int, Candidate] = {}

        def after(drafted: Sequence[int]) -> dict[int, float]:
            nonlocal options
            options = predict(options[drafted[-1]].continuations() if drafted else root, drafted, request.tokens)
            return {token: option.share for token, option in options.items()}

        return sampled_chain("suffix", request.draws(), after, budget, self._vocab_size)
