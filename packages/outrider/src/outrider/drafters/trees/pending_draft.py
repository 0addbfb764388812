"""Drafts in the making, with their rows in a cache: chains and trees that models grow level by level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from outrider.drafters.api import RequestView
from outrider.drafters.heads.calibration import Calibration
from outrider.drafters.trees.builders import TreeBuilder, make_tree_builder
from outrider.drafters.trees.child_sampler import ChildSampler, GumbelArgmax
from outrider.drafters.trees.draft_batch import Feed
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.verify.arrays import Array, host
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.shapes import Acceptance
from outrider.verify.tree import path_to


class PendingDraft:
    """A request's draft in the making; its nodes lie in the cache in the order in which they were looked behind.

    ::

        cache slot     [ the request's tokens | rows of nodes fed so far | rows of the next feed ]
    """

    def __init__(
        self,
        request: RequestView,
        slot: int,
        nodes: int,
        vocab_size: int,
        learned: Acceptance = (),
        vocabulary: DraftVocabulary | None = None,
        calibration: Calibration = (),
    ) -> None:
        """``nodes``: the most it may have.

        Args:
            learned: what ``tree="learned"`` is made from.
            vocabulary: which tokens the logits are of, if not all of the target's.
            calibration: what their probabilities are worth.
        """
        self.request, self.slot = request, slot
        self._tree: TreeBuilder = make_tree_builder(request.speculation, nodes, request.depth_limit, learned)
        self._sampler = ChildSampler(
            request, ranks=self._tree.ranks, vocab_size=vocab_size, vocabulary=vocabulary, calibration=calibration
        )
        self._row: dict[int, int] = {}  # of each node fed, counted from the request's last token
        self._nodes = nodes

    @property
    def tokens(self) -> Sequence[int]:
        """Of its nodes so far."""
        return self._tree.tokens

    @property
    def frontier_tokens(self) -> list[int]:
        """The nodes to look behind next."""
        return [self._tree.tokens[node] for node in self._tree.frontier]

    @property
    def room(self) -> int:
        """Levels that a chain may yet grow."""
        return self._nodes - len(self.tokens)

    @property
    def in_order(self) -> bool:
        """Whether its rows are those of a text: not where it may branch."""
        return self.request.speculation.tree is None

    @property
    def frontier_size(self) -> int:
        """Nodes to look behind next, each of which takes a row; 0: the draft is complete."""
        return len(self._tree.frontier)

    @property
    def end(self) -> int:
        """The row where its next feed begins."""
        return len(self.request.tokens) + len(self._row)

    def should_continue(self, source: str) -> bool:
        """Whether a further level is likely to be worth its time; true where nothing is known."""
        return self.request.should_continue(source, [self._tree.scores_to(node) for node in self._tree.frontier])

    def extend(self, logits: Array) -> None:
        """Grow by a level, from the rows of its last feed (or of the last token): [rows, vocab]."""
        self._tree.extend(self._sampler.level(self._tree, logits))

    def race(self, columns: int) -> GumbelArgmax | None:
        """How each level's token is chosen if it is a chain to which logits [columns] say all; None if it is not."""
        return self._sampler.race(columns) if self.in_order and self.frontier_size else None

    def add(self, token: int, score: float) -> None:
        """Grow a chain by the token that won the ``race`` of its next level."""
        self._tree.extend([self._sampler.winner(len(self.tokens), token, score)])

    def feed(self) -> Feed:
        """The nodes that the draft model is to look behind next."""
        nodes, start, base, fed = self._tree.frontier, self.end, len(self.request.tokens), len(self._row)
        self._row |= {node: fed + i for i, node in enumerate(nodes)}
        paths = [path_to(self._tree.parents, node) for node in nodes]
        mask = None
        if not self.in_order:
            seen = np.zeros((len(nodes), fed + len(nodes)), dtype=np.bool_)
            for row, path in zip(seen, paths, strict=True):
                row[[self._row[node] for node in path]] = True
            mask = None if len(nodes) == 1 and len(paths[0]) == seen.shape[1] else seen
        return Feed(
            self.slot,
            start,
            [self._tree.tokens[node] for node in nodes],
            [base + len(path) - 1 for path in paths],
            mask,
            len(nodes),
            [self._row[path[-2]] if len(path) > 1 else -1 for path in paths],
        )

    def draft(self, source: str) -> Draft:
        """What it is by now."""
        return self._tree.draft(source)


def grow(
    drafts: Iterable[PendingDraft],
    logits: Sequence[Array],
    *,
    fits: Callable[[PendingDraft, int], bool],
    run: Callable[[Sequence[PendingDraft]], Sequence[Array]],
    source: str | None = None,
) -> None:
    """Grow all of them together, a run a level, from the logits [1, vocab] after each request's last token.

    Args:
        fits: whether there is room for so many more rows of one; where there is not, it stays as it is.
        run: looks behind the frontier of every draft.
        source: whose time a run takes, so that none is made that is not likely to pay; None: runs cost nothing.
    """
    growing = list(drafts)
    while growing:
        for each, rows in zip(growing, logits, strict=True):
            each.extend(rows)
        growing = [
            each
            for each in growing
            if each.frontier_size
            and (source is None or each.should_continue(source))
            and fits(each, each.frontier_size)
        ]
        logits = run(growing) if growing else ()


def grow_parallel(
    drafts: Sequence[PendingDraft],
    levels: Array,
    after: Callable[[int, Sequence[int], Sequence[int]], Array] | None = None,
) -> None:
    """Grow all of them where each depth has one row of logits, whatever the path to it.

    Args:
        levels: float [depths, len(drafts), vocab].
        after: what nodes add to the logits behind them, [n, vocab], by the level of these, the place in ``drafts`` of
            each node and its token. None: nothing.
    """
    place = {id(each): i for i, each in enumerate(drafts)}
    rows_of, level = host(levels), 0

    def fits(each: PendingDraft, rows: int) -> bool:
        return level + 1 < len(rows_of)

    def run(growing: Sequence[PendingDraft]) -> Sequence[Array]:
        nonlocal level
        level += 1
        rows = [
            np.broadcast_to(own := rows_of[level, place[id(each)]], (each.frontier_size, *own.shape))
            for each in growing
        ]
        if after is None:
            return rows
        nodes = [(place[id(each)], token) for each in growing for token in each.frontier_tokens]
        added = host(after(level, [own for own, _ in nodes], [token for _, token in nodes]))
        return np.split(np.concatenate(rows) + added, np.cumsum([len(part) for part in rows])[:-1])

    grow(drafts, [row[None] for row in rows_of[0]], fits=fits, run=run)


def drafts_of(pending: Iterable[PendingDraft], requests: Sequence[RequestView], source: str) -> list[Draft]:
    """The drafts in the order of ``requests``; nothing where a request has none."""
    drafts = {each.request.id: each.draft(source) for each in pending}
    return [drafts.get(request.id, EMPTY) for request in requests]
