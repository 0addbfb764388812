"""Drafts in the making with their rows in a cache: chains and trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from outrider.core.draft import Draft
from outrider.core.shapes import Acceptance
from outrider.core.tree import path_to
from outrider.drafters.api import RequestView
from outrider.drafters.trees.builders import Growth, new_tree
from outrider.drafters.trees.child_sampler import Chooser
from outrider.drafters.trees.draft_batch import Feed
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary


class Sapling:
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
    ) -> None:
        """``nodes``: the most it may have.

        Args:
            learned: what ``tree="learned"`` is made from.
            vocabulary: which tokens the logits are of, if not all of the target's.
        """
        self.request, self.slot = request, slot
        self._growth: Growth = new_tree(request.speculation, nodes, request.depth_limit, learned)
        self._choose = Chooser(request, ranks=self._growth.ranks, vocab_size=vocab_size, vocabulary=vocabulary)
        self._row: dict[int, int] = {}  # of each node fed, counted from the request's last token
        self._nodes = nodes

    @property
    def tokens(self) -> Sequence[int]:
        """Of its nodes so far."""
        return self._growth.tokens

    @property
    def room(self) -> int:
        """Levels that a chain may yet grow."""
        return self._nodes - len(self.tokens)

    @property
    def in_order(self) -> bool:
        """Whether its rows are those of a text: not where it may branch."""
        return self.request.speculation.tree is None

    @property
    def wants(self) -> int:
        """Rows its next feed takes; 0: fully grown."""
        return len(self._growth.wanted)

    @property
    def end(self) -> int:
        """The row where its next feed begins."""
        return len(self.request.tokens) + len(self._row)

    def promising(self, source: str) -> bool:
        """Whether a further level is likely to be worth its time, as far as anybody can say."""
        return self.request.promising(source, [self._growth.scores_to(node) for node in self._growth.wanted])

    def extend(self, logits: Tensor) -> None:
        """Grow by a level, from the rows of its last feed (or of the last token): [rows, vocab]."""
        self._growth.extend(self._choose.level(self._growth, logits))

    def feed(self) -> Feed:
        """What it wants the draft model to look behind next."""
        nodes, start, base, fed = self._growth.wanted, self.end, len(self.request.tokens), len(self._row)
        self._row |= {node: fed + i for i, node in enumerate(nodes)}
        paths = [path_to(self._growth.parents, node) for node in nodes]
        mask = None
        if not self.in_order:
            mask = torch.zeros(len(nodes), fed + len(nodes), dtype=torch.bool)
            for i, path in enumerate(paths):
                mask[i, [self._row[node] for node in path]] = True
            mask = None if bool(mask.all()) and len(nodes) == 1 else mask
        return Feed(
            self.slot,
            start,
            [self._growth.tokens[node] for node in nodes],
            [base + len(path) - 1 for path in paths],
            mask,
            len(nodes),
            [self._row[path[-2]] if len(path) > 1 else -1 for path in paths],
        )

    def draft(self, source: str) -> Draft:
        return self._growth.draft(source)


def grow(
    saplings: Iterable[Sapling],
    logits: Sequence[Tensor],
    *,
    fits: Callable[[Sapling, int], bool],
    run: Callable[[Sequence[Sapling]], Sequence[Tensor]],
    source: str | None = None,
) -> None:
    """Grow all of them together, a run a level, from the logits [1, vocab] after each request's last token.

    Args:
        fits: whether there is room for so many more rows of one; where there is not, it stays as it is.
        run: feeds every sapling what it wants.
        source: whose time a run takes, so that none is made that is not likely to pay; None: runs cost nothing.
    """
    growing = list(saplings)
    while growing:
        for each, rows in zip(growing, logits, strict=True):
            each.extend(rows)
        growing = [
            each
            for each in growing
            if each.wants and (source is None or each.promising(source)) and fits(each, each.wants)
        ]
        logits = run(growing) if growing else ()
