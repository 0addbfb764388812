"""The input and output of verification: ``Draft`` and ``Verdict``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from operator import eq

from outrider.verify.arrays import Floats, as_floats
from outrider.verify.tree import depths, leaves


@dataclass(frozen=True)
class Draft:
    """A tree of proposed tokens in topological order. A chain is a tree too; an empty draft is plain decoding.

    Tokens and parents are Python integers, because verification runs on the host.

        tokens  = (7, 8, 9)        root ── 7 ── 9      root is the last committed token, written -1
        parents = (-1, -1, 0)          └── 8
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]  # parents[i] < i; -1 is a child of the last committed token
    q_logits: Floats | None = None
    """float32 [n, vocab]: unnormalised log-probabilities of the distribution ``q`` that each token was drawn from.

    Other float arrays and torch tensors are converted. None: ``q`` is one-hot at each token."""
    source: str = "none"  # the drafter, for statistics
    scores: tuple[float, ...] | None = None  # each node's acceptance probability given its parent, by the source
    sources: tuple[str, ...] = ()  # the drafter of each node, for drafts of several drafters

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"draft of {len(self.tokens)} tokens has {len(self.parents)} parents")
        for i, parent in enumerate(self.parents):
            if not -1 <= parent < i:
                raise ValueError(f"draft node {i} has parent {parent}; parents come before their children")
        if self.q_logits is not None:
            object.__setattr__(self, "q_logits", as_floats(self.q_logits))
        if self.q_logits is not None and self.q_logits.shape[0] != len(self.tokens):
            raise ValueError(f"draft of {len(self.tokens)} tokens has {self.q_logits.shape[0]} rows of q_logits")
        if self.scores is not None and len(self.scores) != len(self.tokens):
            raise ValueError(f"draft of {len(self.tokens)} tokens has {len(self.scores)} scores")
        if self.sources and len(self.sources) != len(self.tokens):
            raise ValueError(f"draft of {len(self.tokens)} tokens has {len(self.sources)} sources")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        *,
        q_logits: Floats | None = None,
        source: str = "none",
        scores: Sequence[float] | None = None,
    ) -> Draft:
        """A draft without branches: each token is the child of the one before."""
        parents = tuple(range(-1, len(tokens) - 1))
        return cls(tuple(tokens), parents, q_logits, source, None if scores is None else tuple(scores))

    def only(self, nodes: Sequence[int]) -> Draft:
        """The subtree of ``nodes``: ascending, each with its parent."""
        if len(nodes) == len(self):
            return self
        place = {node: i for i, node in enumerate(nodes)} | {-1: -1}
        return Draft(
            tuple([self.tokens[i] for i in nodes]),
            tuple([place[self.parents[i]] for i in nodes]),
            None if self.q_logits is None else self.q_logits[list(nodes)],
            self.source,
            None if self.scores is None else tuple([self.scores[i] for i in nodes]),
            tuple([self.sources[i] for i in nodes]) if self.sources else (),
        )

    def source_of(self, node: int) -> str:
        """The drafter that proposed a node."""
        return self.sources[node] if self.sources else self.source

    @cached_property
    def is_chain(self) -> bool:
        return all(map(eq, self.parents, count(-1)))

    @cached_property
    def depths(self) -> list[int]:
        """The depth of each node (``tree.depths``)."""
        return depths(self.parents)

    @cached_property
    def branches(self) -> int:
        """The number of leaves beyond the first."""
        return 0 if self.is_chain else leaves(self.parents) - 1


@dataclass(frozen=True)
class DraftReport:
    """A step's draft and its accepted path, for reports. Holds no array of the vocabulary's size."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    sources: tuple[str, ...]
    scores: tuple[float, ...] | None
    path: tuple[int, ...]  # accepted nodes, root to leaf
    budget: int  # nodes requested of the sources; 0: drafting was expected to cost more than it saves
    proposed: int  # nodes that the sources proposed; ``tokens`` are the scored nodes

    @classmethod
    def of(cls, draft: Draft, path: tuple[int, ...], budget: int, proposed: int) -> DraftReport:
        sources = tuple(draft.source_of(node) for node in range(len(draft)))
        return cls(draft.tokens, draft.parents, sources, draft.scores, path, budget, proposed)


EMPTY = Draft((), ())
"""No proposal: the step is plain decoding."""


@dataclass(frozen=True)
class Verdict:
    """The tokens that verification emits for one request in one step."""

    path: tuple[int, ...]  # accepted node indices, root to leaf
    token: int  # the recovered token (a draft was refused) or the bonus token (the whole path was kept)
