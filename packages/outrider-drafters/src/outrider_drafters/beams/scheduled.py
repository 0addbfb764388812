"""A beam search's part of a step: rows of its tree, and drafts after its beams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from outrider.engine.request import Request
from outrider.engine.runner import ScheduledRequest, TargetOutput
from outrider.models.batch import SequenceInput
from outrider.verify.distribution import Context
from outrider.verify.draft import Draft
from outrider_drafters.beams.candidates import beam_candidates
from outrider_drafters.beams.drafting import BeamDraft
from outrider_drafters.beams.search import BeamSearch, Node


@dataclass(frozen=True)
class BeamSteps:
    """The progress of a search in one run."""

    count: int
    accepted: int  # draft nodes that beams reached


class ScheduledBeams(ScheduledRequest):
    """``num_tokens`` pending rows of the prompt and the tree, then the nodes of all drafts.

    ::

        rows in the cache   [ prompt | A  B ]       new rows   [ C  D | c1 c2  d1 ]
        logits                                      in order     C c1 c2 D d1
    """

    def __init__(
        self,
        request: Request,
        search: BeamSearch,
        rest: Sequence[Node],
        num_tokens: int,
        drafts: Sequence[BeamDraft],
    ) -> None:
        """``rest``: the tree's nodes, those with rows before pending ones.

        ``drafts``: of live beams; empty unless all pending rows are scheduled.
        """
        self.search, self.drafts = search, drafts
        self.drafted = [_nodes(tip, draft) for tip, draft in drafts]
        forest: list[int] = []
        for _, draft in drafts:
            base = len(forest)
            forest += [parent if parent < 0 else base + parent for parent in draft.parents]
        tokens = tuple(node.token for nodes in self.drafted for node in nodes)
        source = drafts[0][1].source if drafts else "none"
        super().__init__(request, num_tokens, Draft(tokens, tuple(forest), source=source))
        first = request.num_computed_tokens - len(request.prompt)  # index of the first scheduled node in ``rest``
        self.read = [*request.prompt[request.num_computed_tokens :][:num_tokens]]
        held, end = max(0, first), max(0, first + num_tokens)
        self.held, self.fresh = rest[:held], rest[held:end]

    @cached_property
    def nodes(self) -> list[Node]:
        """The tree's nodes with a row in the cache after the step, in order of rows."""
        return [*self.held, *self.fresh, *(node for nodes in self.drafted for node in nodes)]

    @cached_property
    def scored(self) -> list[Node]:
        """Nodes that get logits, in order: unscored nodes, each followed by its draft."""
        drafted = {tip: nodes for (tip, _), nodes in zip(self.drafts, self.drafted, strict=True)}
        root, request = self.search.root, self.request
        ends_prompt = bool(self.read) and request.num_computed_tokens + len(self.read) == len(request.prompt)
        unscored = [node for node in [*([root] if ends_prompt else []), *self.fresh] if node.candidates is None]
        out: list[Node] = []
        for node in dict.fromkeys((*unscored, *drafted)):
            out += [node] if node in unscored else []
            out += drafted.get(node, [])
        return out

    @property
    def decides(self) -> bool:
        return bool(self.scored)

    @property
    def num_logit_rows(self) -> int:
        return len(self.scored)

    def sequence_input(self) -> SequenceInput:
        request = self.request
        assert request.slot is not None
        start, last = request.num_computed_tokens, len(request.prompt) - 1
        fresh = self.nodes[len(self.held) :]
        place: dict[Node, int] = {node: len(self.read) + i for i, node in enumerate(fresh)}
        place[self.search.root] = len(self.read) - 1
        return SequenceInput(
            request.slot,
            start,
            tokens=[*self.read, *(node.token for node in fresh)],
            positions=[*range(start, start + len(self.read)), *(last + node.depth for node in fresh)],
            logit_rows=[place[node] for node in self.scored],
            mask=self.tree_mask(),
            adapter=self.adapter,
        )

    def tree_mask(self) -> NDArray[np.bool_] | None:
        """bool [n, t]: nodes attend to their ancestors. The prefix that all nodes share needs no mask."""
        index = {node: i for i, node in enumerate(self.nodes)}
        parents = [-1 if node.parent is None else index.get(node.parent, -1) for node in self.nodes]
        shared = _shared(parents)
        first = max(shared, len(self.held))
        n, t = len(parents) - first, len(parents) - shared
        if n <= 0 or t <= 0:
            return None
        mask = np.zeros((n, t), dtype=np.bool_)
        for row in range(n):
            node = first + row
            while node >= shared:
                mask[row, node - shared] = True
                node = parents[node]
                if node >= first:
                    mask[row] |= mask[node - first]
                    break
        return mask

    def advance(self, output: TargetOutput, vocab_size: int, stop_ids: Sequence[int]) -> BeamSteps:
        """Advance the search as far as the scored rows reach.

        Raises the errors of ``beam_candidates`` for live beams; drafts that no beam reaches raise none.
        """
        request, search = self.request, self.search
        rows = {node: output.first + i for i, node in enumerate(self.scored)}
        count = BeamSearch.num_candidates(request.params, request.stop_ids)
        steps = 0
        while True:
            wanted = [node for node in search.live() if node.candidates is None and node in rows]
            if wanted:
                found = beam_candidates(
                    output.logits[[rows[node] for node in wanted], :vocab_size],
                    [Context(request.prompt, node.tokens()) for node in wanted],
                    request.params,
                    count,
                    stop_ids,
                    request.constraint,
                )
                for node, candidates in zip(wanted, found, strict=True):
                    node.candidates = candidates
            if not search.can_step:
                accepted = sum(node.candidates is not None for nodes in self.drafted for node in nodes)
                return BeamSteps(steps, accepted)
            search.step(request.max_seq_len - len(request.prompt))
            steps += 1


def _nodes(tip: Node, draft: Draft) -> list[Node]:
    """The nodes of a draft after a beam."""
    nodes: list[Node] = []
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        above = tip if parent < 0 else nodes[parent]
        twin = token in above.children  # beams reach the first of equal siblings
        nodes.append(Node(token, above, draft.source_of(i)) if twin else above.child(token, draft.source_of(i)))
    return nodes


def _shared(parents: Sequence[int]) -> int:
    """The number of first nodes that form a chain above all others: ``(-1, 0, 1, 1) -> 2``."""
    chain = next((i for i, parent in enumerate(parents) if parent != i - 1), len(parents))
    return min([chain, *(parent + 1 for parent in parents[chain:])])
