"""A beam search's part of a step where a model has recurrent states: each beam goes on from its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from outrider.engine.request import Request
from outrider.models.batch import SequenceInput
from outrider_drafters.beams.drafting import BeamDraft
from outrider_drafters.beams.scheduled import ScheduledBeams
from outrider_drafters.beams.search import BeamSearch, Node
from outrider_drafters.beams.states import BeamStates


class ScheduledBranches(ScheduledBeams):
    """Rows of the tree by the states from which they go on.

    ::

        rows in the cache   [ prompt | A  B ]       new rows   [ C c1 c2 ] [ D d1 ]
        states                                                 of A        of B
    """

    def __init__(
        self,
        request: Request,
        search: BeamSearch,
        rest: Sequence[Node],
        num_tokens: int,
        drafts: Sequence[BeamDraft],
        states: BeamStates,
    ) -> None:
        super().__init__(request, search, rest, num_tokens, drafts)
        self._states = states
        self._starts = request.num_computed_tokens

    @cached_property
    def runs(self) -> list[list[Node]]:
        """The new rows of the tree, by the states from which they go on: pending nodes, and the drafts after them."""
        drafted = {tip: nodes for (tip, _), nodes in zip(self.drafts, self.drafted, strict=True)}
        runs = chains(self.fresh)
        runs = [[*run, *drafted.pop(run[-1], ())] for run in runs]
        return [*runs, *filter(None, drafted.values())]

    @cached_property
    def nodes(self) -> list[Node]:
        return [*self.held, *chain.from_iterable(self.runs)]

    @cached_property
    def scored(self) -> list[Node]:
        if self.read:
            return super().scored
        return [node for run in self.runs for node in run if node.candidates is None]

    def sequence_inputs(self) -> list[SequenceInput]:
        if self.read:  # rows of the tree are drafts after the prompt
            return [replace(self.sequence_input(), kept=self.kept)]
        request, mask, begin = self.request, self.tree_mask(), len(self.held)
        assert request.slot is not None
        found: list[SequenceInput] = []
        for run in self.runs:
            end, start = begin + len(run), len(request.prompt) + begin
            found.append(
                SequenceInput(
                    request.slot,
                    start,
                    tokens=[node.token for node in run],
                    positions=[len(request.prompt) - 1 + node.depth for node in run],
                    logit_rows=[i for i, node in enumerate(run) if node.candidates is None],
                    mask=None if mask is None else _part(mask, begin - len(self.nodes), end - len(self.nodes)),
                    adapter=self.adapter,
                    kept=0,
                    branch=self._states.start(run, start),
                )
            )
            begin = end
        return found

    def ran(self) -> None:
        """Let the beams' states know of the rows, after the pass."""
        if not self.read:
            self._states.ran(self.runs)
        elif self._starts + len(self.read) == len(self.request.prompt):
            self._states.read_prompt(len(self.request.prompt), self.nodes)


def chains(nodes: Sequence[Node]) -> list[list[Node]]:
    """Split nodes where one is not the child of the one before it."""
    runs: list[list[Node]] = []
    for node in nodes:
        if runs and node.parent is runs[-1][-1]:
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs


def rows_at_once(nodes: Sequence[Node], longest: int) -> int:
    """Of pending nodes, the first that one pass can read: chains of ``longest`` rows after rows of earlier passes."""
    count, new = 0, set[Node | None]()
    for run in chains(nodes):
        if run[0].parent in new:
            break
        new.update(run)
        count += min(len(run), longest)
        if len(run) > longest:
            break
    return count


def _part(mask: NDArray[np.bool_], first: int, last: int) -> NDArray[np.bool_] | None:
    """Of a mask [n, t] of the last rows of a tree, that of the rows ``first`` to ``last``, counted from the end (0)."""
    n, t = mask.shape
    rows = mask[max(0, n + first) : max(0, n + last), : t + last]
    return rows if rows.size else None
