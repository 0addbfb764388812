"""Drafts in the making with their rows in a cache: a chain, which costs as little as can be, or a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from outrider.core.distribution import Context, TargetRows
from outrider.core.draft import EMPTY, Draft
from outrider.core.shapes import Acceptance
from outrider.core.tree import path_to
from outrider.drafters.base import RequestView
from outrider.drafters.choose import Chooser, draft_params
from outrider.drafters.growth import Growth, new_tree
from outrider.drafters.runs import Feed
from outrider.drafters.vocabulary import DraftVocabulary
from outrider.errors import GrammarError


class Sapling(Protocol):
    """A request's draft in the making.

    cache slot     [ the request's tokens | rows of nodes fed so far | rows of the next feed ]
    """

    request: RequestView
    slot: int

    @property
    def wants(self) -> int:
        """Rows its next feed takes; 0: fully grown."""
        ...

    @property
    def end(self) -> int:
        """The row where its next feed begins."""
        ...

    def extend(self, logits: Tensor) -> None:
        """Grow by a level, from the rows of its last feed (or of the last token): [rows, vocab]."""
        ...

    def feed(self) -> Feed:
        """What it wants the draft model to look behind next."""
        ...

    def draft(self, source: str) -> Draft: ...


class Chain:
    """One token at a time."""

    def __init__(
        self,
        request: RequestView,
        slot: int,
        length: int,
        vocab_size: int,
        vocabulary: DraftVocabulary | None = None,
    ) -> None:
        self.request, self.slot = request, slot
        self.tokens: list[int] = []
        self._rows: list[Tensor] = []  # q, where the verifier needs it
        self.length = length  # that it will have
        self._params = draft_params(request)
        self._draws = request.draws()
        self._vocab_size, self._vocabulary = vocab_size, vocabulary

    @property
    def wants(self) -> int:
        return 1 if len(self.tokens) < self.length else 0

    @property
    def end(self) -> int:
        return len(self.request.tokens) + len(self.tokens) - 1

    def extend(self, logits: Tensor) -> None:
        depth, split = len(self.tokens), self.request.prompt_length
        context = Context(self.request.tokens[:split], [*self.request.tokens[split:], *self.tokens])
        rules = self.request.constraint
        logits = logits if self._vocabulary is None else self._vocabulary.full(logits)
        row = TargetRows(logits, self._params, context, EMPTY, vocab_size=self._vocab_size, constraint=rules)
        try:
            if self._draws.coupled:
                self.tokens.append(row.draw(0, self._draws.noise, self._draws.base + depth))
            else:
                self._rows.append(row.log_weights(0))
                self.tokens.append(self._draws.draw(self._rows[-1], depth=depth, node=depth))
        except GrammarError:  # of this request, which ends with it if it gets that far; the others go on
            self.length = depth

    def feed(self) -> Feed:
        return Feed(self.slot, self.end, self.tokens[-1:], (self.end,), above=(len(self.tokens) - 2,))

    def draft(self, source: str) -> Draft:
        if not self.tokens:
            return EMPTY
        return Draft.chain(self.tokens, q=torch.stack(self._rows) if self._rows else None, source=source)


class Tree:
    """A level at a time; nodes lie in the cache in the order in which they were looked behind."""

    def __init__(
        self,
        request: RequestView,
        slot: int,
        nodes: int,
        vocab_size: int,
        learned: Acceptance = (),
        vocabulary: DraftVocabulary | None = None,
    ) -> None:
        self.request, self.slot = request, slot
        self._growth: Growth = new_tree(request.speculation, nodes, request.depth_limit, learned)
        self._choose = Chooser(request, ranks=self._growth.ranks, vocab_size=vocab_size, vocabulary=vocabulary)
        self._row: dict[int, int] = {}  # of each node fed, counted from the request's last token

    @property
    def wants(self) -> int:
        return len(self._growth.wanted)

    @property
    def end(self) -> int:
        return len(self.request.tokens) + len(self._row)

    def extend(self, logits: Tensor) -> None:
        self._growth.extend(self._choose.level(self._growth, logits))

    def feed(self) -> Feed:
        nodes, start, base, fed = self._growth.wanted, self.end, len(self.request.tokens), len(self._row)
        self._row |= {node: fed + i for i, node in enumerate(nodes)}
        paths = [path_to(self._growth.parents, node) for node in nodes]
        mask = torch.zeros(len(nodes), fed + len(nodes), dtype=torch.bool)
        for i, path in enumerate(paths):
            mask[i, [self._row[node] for node in path]] = True
        return Feed(
            self.slot,
            start,
            [self._growth.tokens[node] for node in nodes],
            [base + len(path) - 1 for path in paths],
            None if bool(mask.all()) and len(nodes) == 1 else mask,
            len(nodes),
            [self._row[path[-2]] if len(path) > 1 else -1 for path in paths],
        )

    def draft(self, source: str) -> Draft:
        return self._growth.draft(source)


def sapling(
    request: RequestView,
    slot: int,
    nodes: int,
    vocab_size: int,
    learned: Acceptance = (),
    vocabulary: DraftVocabulary | None = None,
) -> Sapling:
    """The kind of draft that the request asks for.

    Args:
        learned: what ``tree="learned"`` is made from.
        vocabulary: which tokens the logits are of, if not all of the target's.
    """
    if request.speculation.tree is None:
        return Chain(request, slot, nodes, vocab_size, vocabulary)
    return Tree(request, slot, nodes, vocab_size, learned, vocabulary)


def grow(
    saplings: Iterable[Sapling],
    logits: Sequence[Tensor],
    *,
    fits: Callable[[Sapling, int], bool],
    run: Callable[[Sequence[Sapling]], Sequence[Tensor]],
) -> None:
    """Grow all of them together, a run a level, from the logits [1, vocab] after each request's last token.

    Args:
        fits: whether there is room for so many more rows of one; where there is not, it stays as it is.
        run: feeds every sapling what it wants.
    """
    growing = list(saplings)
    while growing:
        for each, rows in zip(growing, logits, strict=True):
            each.extend(rows)
        growing = [each for each in growing if each.wants and fits(each, each.wants)]
        logits = run(growing) if growing else ()
