"""Chains and trees that a draft model grows level by level, with their rows in its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.drafters.api import RequestView
from outrider.drafters.heads.calibration import Calibration
from outrider.drafters.trees.builders import TreeBuilder, make_tree_builder
from outrider.drafters.trees.child_sampler import ChildSampler, GumbelArgmax
from outrider.drafters.trees.confidence import trusted
from outrider.drafters.trees.draft_batch import Feed
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.verify.arrays import Array, host
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.shapes import Acceptance
from outrider.verify.tree import path_to


class PendingDraft:
    """A request's draft under construction; its nodes lie in the cache in the order of their expansion.

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
        """
        Args:
            nodes: the most nodes of the draft.
            learned: the source's acceptance, for ``tree="learned"``.
            vocabulary: the tokens that the logits score; None: all of the target's.
            calibration: of the scores.
        """
        self.request, self.slot = request, slot
        self._tree: TreeBuilder = make_tree_builder(request.speculation, nodes, request.depth_limit, learned)
        self._sampler = ChildSampler(
            request, ranks=self._tree.ranks, vocab_size=vocab_size, vocabulary=vocabulary, calibration=calibration
        )
        self._row: dict[int, int] = {}  # the cache row of each node fed, counted from the request's last token
        self._nodes = nodes

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens of the nodes so far."""
        return self._tree.tokens

    @property
    def frontier_tokens(self) -> list[int]:
        """The tokens of the nodes to expand next; the request's last token for the root."""
        last = self.request.tokens[-1]
        return [self._tree.tokens[node] if node >= 0 else last for node in self._tree.frontier]

    @property
    def room(self) -> int:
        """The levels that a chain can still gain."""
        return self._nodes - len(self.tokens)

    @property
    def in_order(self) -> bool:
        """Whether each node's parent is the row before: only for chains."""
        return self.request.speculation.tree is None

    @property
    def frontier_size(self) -> int:
        """The number of nodes to expand next, one cache row each; 0: the draft is complete."""
        return len(self._tree.frontier)

    @property
    def end(self) -> int:
        """The cache row where the next feed begins."""
        return len(self.request.tokens) + len(self._row)

    def should_continue(self, source: str) -> bool:
        """Whether a further level is expected to save more time than it costs; true without an estimate."""
        return self.request.should_continue(source, [self._tree.scores_to(node) for node in self._tree.frontier])

    def extend(self, logits: Array, sure: Sequence[float] = ()) -> None:
        """Grow by a level, from the logits of the last feed or of the request's last token: [rows, vocab].

        ``sure``: for each row, the log-probability that the target takes its best token, by the head; empty: unknown.
        """
        found = self._sampler.level(self._tree, logits)
        self._tree.extend(trusted(found, sure, alone=self.in_order) if len(sure) else found)

    def race(self, columns: int) -> GumbelArgmax | None:
        """The rule for each level's token if the draft is a chain chosen from logits [columns] alone; else None."""
        return self._sampler.race(columns) if self.in_order and self.frontier_size else None

    def add(self, token: int, score: float) -> None:
        """Grow a chain by the token that the rule of ``race`` took at the next level."""
        self._tree.extend([self._sampler.winner(len(self.tokens), token, score)])

    def feed(self) -> Feed:
        """The frontier nodes, as input of the draft model's next pass."""
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
        """The draft as grown so far."""
        return self._tree.draft(source)


ByToken = Callable[[int, Sequence[int], Sequence[int]], Array]
"""From the level of n nodes' children, each node's index among the drafts and its token: an array [n, ...]."""


def grow(
    drafts: Iterable[PendingDraft],
    logits: Sequence[Array],
    *,
    fits: Callable[[PendingDraft, int], bool],
    run: Callable[[Sequence[PendingDraft]], Sequence[Array]],
    source: str | None = None,
    sure: Callable[[Sequence[PendingDraft]], Sequence[Sequence[float]]] | None = None,
) -> None:
    """Grow all drafts together, one pass per level, from the logits [1, vocab] after each request's last token.

    Args:
        fits: whether the cache has room for a number of further rows of a draft; otherwise that draft ends.
        run: the logits [frontier, vocab] of every draft, from a pass over their frontiers.
        source: the source that pays for the passes: a level that would cost more than it saves is not run. None:
            passes cost nothing.
        sure: the argument ``sure`` of ``PendingDraft.extend`` for every draft.
    """
    growing = list(drafts)
    while growing:
        known: Sequence[Sequence[float]] = [()] * len(growing) if sure is None else sure(growing)
        for each, rows, own in zip(growing, logits, known, strict=True):
            each.extend(rows, own)
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
    after: ByToken | None = None,
    sure: ByToken | None = None,
    *,
    from_root: bool = False,
) -> None:
    """Grow all drafts from one row of logits per depth, shared by all paths.

    Args:
        levels: float [depths, len(drafts), vocab].
        after: the logits [n, vocab] to add to the children of n nodes. None adds nothing.
        from_root: whether ``after`` adds to the first level too, behind the request's last token.
        sure: the argument ``sure`` of ``PendingDraft.extend``, [n]. None: unknown.
    """
    place = {id(each): i for i, each in enumerate(drafts)}
    rows_of, level = host(levels), 0

    def parted(call: ByToken, growing: Sequence[PendingDraft]) -> Sequence[NDArray[Any]]:
        """The result of ``call`` for the frontiers, by draft."""
        nodes = [(place[id(each)], token) for each in growing for token in each.frontier_tokens]
        found = host(call(level, [own for own, _ in nodes], [token for _, token in nodes]))
        return np.split(found, np.cumsum([each.frontier_size for each in growing])[:-1])

    def rows(growing: Sequence[PendingDraft]) -> Sequence[NDArray[Any]]:
        found = [
            np.broadcast_to(own := rows_of[level, place[id(each)]], (each.frontier_size, *own.shape))
            for each in growing
        ]
        if after is None or not (level or from_root):
            return found
        return [own + added for own, added in zip(found, parted(after, growing), strict=True)]

    def run(growing: Sequence[PendingDraft]) -> Sequence[Array]:
        nonlocal level
        level += 1
        return rows(growing)

    def known(growing: Sequence[PendingDraft]) -> Sequence[Sequence[float]]:
        assert sure is not None
        return [own.tolist() for own in parted(sure, growing)]

    growing = [each for each in drafts if each.frontier_size]
    grow(
        growing, rows(growing) if growing else (), fits=lambda each, _: level + 1 < len(rows_of), run=run,
        sure=None if sure is None else known,
    )  # fmt: skip


def drafts_of(pending: Iterable[PendingDraft], requests: Sequence[RequestView], source: str) -> list[Draft]:
    """The drafts in the order of ``requests``; an empty draft for a request without one."""
    drafts = {each.request.id: each.draft(source) for each in pending}
    return [drafts.get(request.id, EMPTY) for request in requests]
