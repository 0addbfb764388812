"""Beam search without the model: beams that continue, beams that end, and the end of the search.

The rules are those of transformers' ``generate(num_beams=...)``, and of diverse beam search (Vijayakumar et al. 2016)
where beams are in groups. A ``Node`` is a token in the tree of all beams:

    root ── the ── cat ── sat      three beams: (the, cat, sat), (the, cat, lay), (a, dog, ran)
      │             └──── lay      a node is expanded by its candidates, the most likely first
      └──── a ──── dog ── ran
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from outrider.config import SamplingParams

Candidates = Sequence[tuple[int, float]]
"""Tokens and their log-probabilities (float32 values), the most likely first; ties: the lowest id first."""


class Node:
    """A token after its ancestors' tokens; the root is the prompt's last token."""

    __slots__ = ("candidates", "children", "depth", "parent", "source", "token")

    def __init__(self, token: int, parent: Node | None = None, source: str = "") -> None:
        """``source``: the draft source that proposed the node before a beam reached it; "": none."""
        self.token, self.parent, self.source = token, parent, source
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.children: dict[int, Node] = {}
        self.candidates: Candidates | None = None  # None: the target has not scored it yet

    def child(self, token: int, source: str = "") -> Node:
        """The child with ``token``, made if missing."""
        found = self.children.get(token)
        if found is None:
            found = self.children[token] = Node(token, self, source)
        return found

    def path(self, above: Node | None = None) -> list[Node]:
        """Nodes from the child of the root, or of the ancestor ``above``, down to this one."""
        nodes: list[Node] = []
        node: Node = self
        while node.parent is not None and node is not above:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def tokens(self) -> list[int]:
        """The output that ends at this node."""
        return [node.token for node in self.path()]


@dataclass(frozen=True)
class Beam:
    """An unfinished output."""

    node: Node
    score: np.float32  # sum of its tokens' log-probabilities, less penalties of diversity


@dataclass(frozen=True)
class Hypothesis:
    """A finished output."""

    node: Node
    sum_logprobs: float
    score: float  # sum_logprobs / length ** length_penalty


@dataclass
class BeamGroup:
    """Beams that compete with each other."""

    params: SamplingParams
    stop_ids: Collection[int]
    live: list[Beam]  # best first
    ended: list[Hypothesis] = field(default_factory=list)  # best first, at most the group's width
    done: bool = False

    @property
    def width(self) -> int:
        return self.params.beam_width // self.params.num_beam_groups

    def step(self, chosen: Counter[int], *, last: bool) -> tuple[list[Beam], list[Hypothesis]]:
        """The beams that continue after their next token, and those that end with it (all if it is the ``last``).

        ``chosen``: the number of beams of earlier groups that chose each token in this step.
        """
        found = self._continuations(chosen)
        live: list[Beam] = []
        ended: list[Hypothesis] = []
        for rank, (node, token, total) in enumerate(found):
            if last or token in self.stop_ids:
                if rank < self.width:  # the others only ensure that enough beams continue
                    length = np.float32((node.depth + 1) ** self.params.length_penalty)
                    ended.append(Hypothesis(node.child(token), float(total), float(total / length)))
            elif len(live) < self.width:
                live.append(Beam(node.child(token), total))
            if rank >= self.width - 1 and (last or len(live) == self.width):
                break
        return live, ended

    def _continuations(self, chosen: Counter[int]) -> list[tuple[Node, int, np.float32]]:
        """Nodes, next tokens, and scores: the best first; ties: the better beam's first."""
        weight = np.float32(self.params.diversity_penalty)
        found: list[tuple[Node, int, np.float32]] = []
        for beam in self.live:
            assert beam.node.candidates is not None
            for token, logprob in beam.node.candidates:
                own = np.float32(logprob)
                if chosen[token]:
                    own -= weight * np.float32(chosen[token])
                found.append((beam.node, token, beam.score + own))
        return sorted(found, key=lambda one: -one[2])  # stable: candidates come in order

    def commit(self, live: list[Beam], ended: Sequence[Hypothesis], max_tokens: int) -> None:
        """Apply the outcome of ``step``; the group is done if live beams cannot improve on finished outputs."""
        self.live = live
        self.ended = sorted([*self.ended, *ended], key=lambda one: -one.score)[: self.width]
        full = len(self.ended) == self.width
        self.done = not live or (full and (self.params.early_stopping is True or not self._can_improve(max_tokens)))
        if self.done:
            self.live = []

    def _can_improve(self, max_tokens: int) -> bool:
        """Whether the best beam may beat the worst finished output, by transformers' heuristics."""
        best, power = self.live[0], self.params.length_penalty
        to_the_end = self.params.early_stopping == "never" and power > 0
        length = max_tokens if to_the_end else best.node.depth
        return float(best.score / np.float32(length**power)) > self.ended[-1].score


class BeamSearch:
    """All groups of one search, in lockstep. Each step needs the candidates of every live beam's node."""

    def __init__(self, root: Node, params: SamplingParams, stop_ids: Collection[int], max_tokens: int) -> None:
        """``max_tokens``: the most tokens of an output."""
        self.root, self._max_tokens = root, max_tokens
        self.groups = [BeamGroup(params, stop_ids, [Beam(root, np.float32(0))]) for _ in range(params.num_beam_groups)]

    @staticmethod
    def num_candidates(params: SamplingParams, stop_ids: Collection[int]) -> int:
        """The most continuations of a node that can matter: those that continue, end, or are chosen by other groups."""
        penalised = params.beam_width if params.num_beam_groups > 1 else 0
        return params.beam_width // params.num_beam_groups + len(stop_ids) + penalised

    def fork(self, width: int) -> BeamSearch:
        """A copy of this search from here on, with ``width`` beams and its own nodes.

        Before its first step, its live nodes correspond to this search's in order.
        """
        own = {node: Node(node.token, node.parent) for node in self.live()}
        first = self.groups[0]
        fork = BeamSearch(self.root, replace(first.params, beam_width=width), first.stop_ids, self._max_tokens)
        for mine, group in zip(fork.groups, self.groups, strict=True):
            mine.live = [Beam(own[beam.node], beam.score) for beam in group.live]
            mine.ended, mine.done = list(group.ended), group.done
        return fork

    @property
    def done(self) -> bool:
        return all(group.done for group in self.groups)

    def live(self) -> list[Node]:
        """Nodes of the live beams, each once, in order of groups and ranks."""
        return list(dict.fromkeys(beam.node for group in self.groups for beam in group.live))

    @property
    def can_step(self) -> bool:
        return not self.done and all(node.candidates is not None for node in self.live())

    def step(self, max_nodes: int) -> None:
        """Extend every live beam by one token. All end if the continuing beams' tree exceeds ``max_nodes``."""
        depth = 1 + next(group.live[0].node.depth for group in self.groups if not group.done)
        outcomes = self._step(last=depth >= self._max_tokens)
        ahead = [beam.node for live, _ in outcomes for beam in live]
        if depth * len(ahead) > max_nodes and len(union(ahead)) > max_nodes:
            outcomes = self._step(last=True)
        running = [group for group in self.groups if not group.done]
        for group, (live, ended) in zip(running, outcomes, strict=True):
            group.commit(live, ended, self._max_tokens)

    def _step(self, *, last: bool) -> list[tuple[list[Beam], list[Hypothesis]]]:
        """The outcome of each group that is not done."""
        chosen: Counter[int] = Counter()
        outcomes: list[tuple[list[Beam], list[Hypothesis]]] = []
        for group in self.groups:
            if not group.done:
                live, ended = group.step(chosen, last=last)
                chosen.update([beam.node.token for beam in live])
                outcomes.append((live, ended))
        return outcomes

    def ranked(self) -> list[Hypothesis]:
        """The finished outputs of all groups, best first."""
        return sorted(chain.from_iterable(group.ended for group in self.groups), key=lambda one: -one.score)


def union(nodes: Iterable[Node]) -> list[Node]:
    """The nodes and all their ancestors except the root, each once, parents before children."""
    found: dict[Node, None] = {}
    for node in nodes:
        missing: list[Node] = []
        above: Node = node
        while above.parent is not None and above not in found:
            missing.append(above)
            above = above.parent
        found.update(dict.fromkeys(reversed(missing)))
    return list(found)
