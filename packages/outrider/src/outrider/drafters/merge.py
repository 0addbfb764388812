"""Drafts joined into one tree, equal beginnings once."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.verify.draft import EMPTY, Draft

UNKNOWN = 0.5  # the score of a node whose source gives none, beside others that do


class Trie:
    """A tree in the making in which no two children of a node carry the same token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, child: tuple[int, int]) -> bool:
        """Whether a parent has a child with a token."""
        return child in self._nodes

    def add(self, parent: int, token: int) -> int:
        """The child of ``parent`` (-1: the root) that carries ``token``, which is made if it is not there."""
        node = self._nodes.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
        return node

    def draft(self, source: str) -> Draft:
        return Draft(tuple(self.tokens), tuple(self.parents), None, source) if self.tokens else EMPTY


def merge(drafts: Sequence[Draft], budget: int, source: str) -> Draft:
    """One tree of at most ``budget`` nodes; where they do not all fit, earlier drafts go first.

    ::

        a b c  +  a d  +  e     ->     root ── a ── b ── c
                                       │       └── d
                                       └── e

    It carries no ``q``, which is right for any verifier whatever way the drafts were made: one row per token cannot
    express that a token came from one source or another (docs/algorithms/draft-model.md).
    """
    trie = Trie()
    for draft in drafts:
        nodes: dict[int, int] = {-1: -1}  # of the draft, and of the trie
        for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            if parent not in nodes or (len(trie) == budget and (nodes[parent], token) not in trie):
                continue
            nodes[i] = trie.add(nodes[parent], token)
    return trie.draft(source)


def combine(drafts: Sequence[Draft], budget: int) -> Draft:
    """One tree of at most ``budget`` nodes of drafts by several sources, each node with the first that named it.

    Nodes are taken from the drafts in turn, each draft's in its own order, so that the budget is shared fairly; a node
    that is there already costs nothing.

    ::

        suffix  7 ── 9 ── 4     model  7 ── 9 ── 5     combined  7 ── 9 ── 4
                                       └── 8                     │    └── 5
                                                                 └── 8

    A single draft that is not empty is returned as it is; others lose their ``q``, as in ``merge``.
    """
    nonempty = [draft for draft in drafts if draft]
    if len(nonempty) < 2:
        return nonempty[0] if nonempty else EMPTY
    trie = Trie()
    sources: list[str] = []
    scores: list[float] = []
    placed: list[dict[int, int]] = [{-1: -1} for _ in nonempty]  # node of a draft -> node of the trie
    ahead = [iter(range(len(draft))) for draft in nonempty]  # nodes not yet taken
    waiting = set(range(len(nonempty)))
    while waiting and len(trie) < budget:
        for i in sorted(waiting):
            draft, size = nonempty[i], len(trie)
            while len(trie) == size < budget:
                node = next(ahead[i], None)
                if node is None:
                    waiting.remove(i)
                    break
                placed[i][node] = trie.add(placed[i][draft.parents[node]], draft.tokens[node])
                if len(trie) > size:
                    sources.append(draft.source_of(node))
                    scores.append(UNKNOWN if draft.scores is None else draft.scores[node])
    name = "+".join(dict.fromkeys(draft.source for draft in nonempty))
    return Draft(tuple(trie.tokens), tuple(trie.parents), None, name, tuple(scores), tuple(sources))
