"""Merges several drafts into one tree, with shared prefixes once."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.verify.draft import EMPTY, Draft

UNKNOWN = 0.5  # the score of a node whose source gives no scores


class Trie:
    """A tree under construction in which the children of a node have distinct tokens."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, child: tuple[int, int]) -> bool:
        """Whether the tree has the child (parent, token)."""
        return child in self._nodes

    def add(self, parent: int, token: int) -> int:
        """The child of ``parent`` (-1: the root) with ``token``; created if missing."""
        node = self._nodes.setdefault((parent, token), len(self.tokens))
        if node == len(self.tokens):
            self.tokens.append(token)
            self.parents.append(parent)
        return node

    def draft(self, source: str) -> Draft:
        return Draft(tuple(self.tokens), tuple(self.parents), None, source) if self.tokens else EMPTY


def merge(drafts: Sequence[Draft], budget: int, source: str) -> Draft:
    """One tree of at most ``budget`` nodes; earlier drafts take precedence.

    ::

        a b c  +  a d  +  e     ->     root ── a ── b ── c
                                       │       └── d
                                       └── e

    The tree has no ``q``, because one row per token cannot express a choice between sources. Its one-hot ``q`` is
    exact with any verifier (docs/algorithms/draft-model.md).
    """
    trie = Trie()
    for draft in drafts:
        nodes: dict[int, int] = {-1: -1}  # node of the draft -> node of the trie
        for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            if parent not in nodes or (len(trie) == budget and (nodes[parent], token) not in trie):
                continue
            nodes[i] = trie.add(nodes[parent], token)
    return trie.draft(source)


def combine(drafts: Sequence[Draft], budget: int) -> Draft:
    """One tree of at most ``budget`` nodes from the drafts of several sources.

    Nodes are taken from the drafts in turn, each draft's in order, so that sources share the budget fairly. A node
    that several drafts have counts once, for the first source.

    ::

        suffix  7 ── 9 ── 4     model  7 ── 9 ── 5     combined  7 ── 9 ── 4
                                       └── 8                     │    └── 5
                                                                 └── 8

    A single non-empty draft is returned unchanged; several lose their ``q``, as in ``merge``.
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
