"""Jacobi iteration with an n-gram pool, inside the target's own runs (Fu et al. 2024; docs/algorithms/lookahead.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from outrider.drafters.api import Drafter, Outcome, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.merge import Trie
from outrider.verify.draft import EMPTY, Draft

_GOLDEN = 0.6180339887498949  # its multiples, modulo 1, are evenly spread

_GUESS, _WINDOW = 0.4, 0.05  # initial estimates of a node's acceptance

Gram = tuple[int, ...]


class GuessPool:
    """The latest continuations after each token: N - 1 tokens each, at most G per token."""

    def __init__(self, ngram: int, guesses: int) -> None:
        self._ngram, self._guesses = ngram, guesses
        self._behind: dict[int, dict[Gram, None]] = {}  # oldest first
        self._read = 0

    def add(self, token: int, gram: Gram) -> None:
        grams = self._behind.setdefault(token, {})
        grams.pop(gram, None)
        grams[gram] = None
        while len(grams) > self._guesses:
            del grams[next(iter(grams))]

    def read(self, text: Sequence[int]) -> None:
        """Add the n-grams of a text that has grown at its end."""
        for i in range(self._read, len(text) - self._ngram + 1):
            self.add(text[i], tuple(text[i + 1 : i + self._ngram]))
        self._read = max(self._read, len(text) - self._ngram + 1)

    def behind(self, token: int) -> Iterator[Gram]:
        """The continuations after ``token``, latest first."""
        return reversed(self._behind.get(token, {}))


@dataclass
class _WindowState:
    """A request's window and pool.

    Column i holds N - 1 tokens guessed for positions i, i + 1, ... after the last committed token. The l-th last
    iteration found token l.
    """

    pool: GuessPool
    columns: list[Gram] = field(default_factory=list)
    seeds: int = 0  # columns made from the text so far


def build(context: DrafterContext) -> Drafter:
    """The source ``lookahead``."""
    return LookaheadDrafter()


class LookaheadDrafter(SingleRequestDrafter):
    """Drafts one tree: the window, whose rows every run improves, and n-grams of earlier rows.

    ::

        root ── (0,0) ── (0,1) ── (0,2) ── ...     level 0 of the window: one chain
         │        │        │        └── (1,2)      node (l, i) follows (l - 1, i), and attends to level 0 up to column i
         │        │        └── (1,1)
         │        └── (1,0)
         └── guess ── guess                        n-grams from the pool that begin with the last token

    Column i with the target's most likely token after its last node is an n-gram for the pool. Verification, masks
    and cache treat window nodes like any others, which may be accepted.
    """

    def __init__(self) -> None:
        self._states: dict[str, _WindowState] = {}

    def start(self, request: RequestView) -> None:
        _, ngram, guesses = request.speculation.lookahead_shape
        self._states[request.id] = _WindowState(GuessPool(ngram, guesses))

    def finish(self, request_id: str) -> None:
        self._states.pop(request_id, None)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            state = self._states[outcome.request.id]
            _iterate(state, outcome)
            state.columns = state.columns[len(outcome.committed) - 1 :]  # earlier columns are committed positions

    def draft(self, request: RequestView, budget: int) -> Draft:
        state = self._states[request.id]
        window, ngram, _ = request.speculation.lookahead_shape
        if budget < 1:
            return EMPTY
        state.pool.read(request.tokens)
        while len(state.columns) < window:
            state.columns.append(_seed(request.tokens, ngram - 1, state.seeds))
            state.seeds += 1
        trie = Trie()
        for gram in state.pool.behind(request.tokens[-1]):
            if len(trie) + len(gram) <= budget:
                _append(trie, -1, gram)
        guessed = len(trie)
        level = -1
        for column in state.columns[:window]:
            if len(trie) + len(column) > budget:
                break
            level = trie.add(level, column[0])
            _append(trie, level, column[1:])
        scores = [_GUESS] * guessed + [_WINDOW] * (len(trie) - guessed)
        return Draft(tuple(trie.tokens), tuple(trie.parents), None, "lookahead", tuple(scores))


def _append(trie: Trie, node: int, tokens: Sequence[int]) -> int:
    """Add a chain below ``node``, and return its last node."""
    for token in tokens:
        node = trie.add(node, token)
    return node


def _iterate(state: _WindowState, outcome: Outcome) -> None:
    """One Jacobi iteration: every scored column loses its oldest token and gains the target's most likely next one.

    Columns are found in the draft by their tokens, as a controller may have dropped some.
    """
    draft = outcome.draft
    nodes = {edge: node for node, edge in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    level = -1
    for i, column in enumerate(state.columns):
        if (level, column[0]) not in nodes:
            return
        level = nodes[level, column[0]]
        end: int | None = level
        for token in column[1:]:
            end = None if end is None else nodes.get((end, token))
        if end is not None:
            found = outcome.p.most_likely(1 + end)
            state.pool.add(column[0], (*column[1:], found))
            state.columns[i] = (*column[1:], found)


def _seed(tokens: Sequence[int], length: int, index: int) -> Gram:
    """A first guess for a column: consecutive tokens of the text, from a different place for each index."""
    start = int((index * _GOLDEN) % 1 * max(1, len(tokens) - length + 1))
    gram = tuple(tokens[start : start + length])
    return gram + gram[-1:] * (length - len(gram))
