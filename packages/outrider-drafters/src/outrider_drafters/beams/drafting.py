"""A draft model searches ahead with its own beams (Leviathan et al. 2023, appendix A.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from outrider.config.sampling import MAX_WIDTH
from outrider.drafters.api import RequestView
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.trees.draft_batch import Feed
from outrider.verify.arrays import Array
from outrider.verify.distribution import Context
from outrider.verify.draft import Draft
from outrider_drafters.beams.candidates import beam_candidates
from outrider_drafters.beams.search import BeamSearch, Node, union

BeamDraft = tuple[Node, Draft]
"""A live beam, and the draft after it."""


def width_ahead(beam_width: int, groups: int) -> int:
    """Beams of the draft model's search: 1.5 times ``beam_width``, to contain the target's beams more often."""
    each = beam_width // groups
    return groups * min(each + (each + 1) // 2, MAX_WIDTH // groups)


class DraftBeams:
    """One search in a draft model's cache. Its rows are a tree, as in the target's.

    ::

        rows   [ prompt but its last token | last  A  B  a1  b1 ]
                                              └─ row 0 of the tree

    Rows of dropped beams are removed before the next draft. The live beams' last tokens are fed
    again for their logits.
    """

    def __init__(self, model: DraftModel, request: RequestView, source: str) -> None:
        self._model, self._request, self._source = model, request, source
        self._sequence = model.sequences[request.id]
        self._prompt = list(request.tokens[: request.prompt_length])
        self._rows: list[tuple[int, int]] = []  # of the tree: the parent's row (-1: none) and the token

    def propose(self, search: BeamSearch, budget: int) -> list[BeamDraft]:
        """Drafts from the draft model's beams; the best first where the budget ends within a level."""
        tips, params = search.live(), search.groups[0].params
        budget = min(budget, self._model.remaining_context(len(self._prompt) + tips[0].depth))
        if budget < 1 or not self._read_prompt():
            return []
        tree = [*([search.root] if tips[0].depth else []), *union(tips)]
        tree = [*(node for node in tree if node not in tips), *tips]
        rows = self._keep(tree[: -len(tips)])
        logits = self._feed([node for node in tree if node not in rows], rows)
        ahead = search.fork(width_ahead(params.beam_width, params.num_beam_groups))
        above = dict(zip(ahead.live(), tips, strict=True))
        rows |= {own: rows[tip] for own, tip in above.items() if tip in rows}
        drafted: list[Node] = []
        while logits is not None and len(drafted) < budget:
            self._step(ahead, logits)
            level = ahead.live()[: budget - len(drafted)]
            drafted += level
            more = len(drafted) < budget and self._request.should_continue(self._source, [()])
            logits = self._feed(level, rows) if level and more else None
        return _drafts(above, drafted, self._source)

    def _read_prompt(self) -> bool:
        """Read the prompt except its last token; whether it is now in the cache."""
        if len(self._sequence.cached) < len(self._prompt) - 1:
            self._model.prefill([(self._sequence, self._prompt[:-1])], lambda: self._request.seconds_left)
        return len(self._sequence.cached) == len(self._prompt) - 1

    def _keep(self, nodes: Sequence[Node]) -> dict[Node, int]:
        """Drop all rows of the tree except those of ``nodes`` (parents first); return the nodes' rows, if any."""
        index = {row: i for i, row in enumerate(self._rows)}
        held: dict[Node, int] = {}
        for node in nodes:
            above = -1 if node.parent is None else held.get(node.parent)
            if above is not None and (above, node.token) in index:
                held[node] = index[above, node.token]
        kept = sorted(held.values())
        place = {row: i for i, row in enumerate(kept)} | {-1: -1}
        self._model.cache.keep_path(self._sequence.slot, len(self._prompt) - 1, kept)
        self._rows = [(place[above], token) for above, token in (self._rows[row] for row in kept)]
        return {node: place[row] for node, row in held.items()}

    def _feed(self, nodes: Sequence[Node], rows: dict[Node, int]) -> Array | None:
        """Feed nodes, parents first; return logits [len(nodes), vocab] after each, or None without room.

        ``rows``: rows of the tree's nodes; the new nodes' are added.
        """
        if not self._model.can_extend(self._sequence, len(nodes)):
            return None
        start, first = len(self._prompt) - 1, len(self._rows)
        for node in nodes:
            rows[node] = len(self._rows)
            self._rows.append((-1 if node.parent is None else rows[node.parent], node.token))
        seen = np.zeros((len(nodes), len(self._rows)), dtype=np.bool_)
        for i in range(len(nodes)):
            row = first + i
            while row >= 0:
                seen[i, row] = True
                row = self._rows[row][0]
        positions = [start + node.depth for node in nodes]
        tokens = [node.token for node in nodes]
        return self._model.run([Feed(self._sequence.slot, start + first, tokens, positions, seen, len(nodes))])[0]

    def _step(self, ahead: BeamSearch, logits: Array) -> None:
        """Extend the draft model's beams by one token, from the logits [rows, vocab] of the live beams."""
        group, live = ahead.groups[0], ahead.live()
        logits = logits[-len(live) :]  # earlier rows are of their ancestors
        found = beam_candidates(
            logits[:, : self._model.vocab_size],
            [Context(self._prompt, node.tokens()) for node in live],
            group.params,
            BeamSearch.num_candidates(group.params, group.stop_ids),
            tuple(group.stop_ids),
            self._request.constraint,
        )
        for node, candidates in zip(live, found, strict=True):
            node.candidates = candidates
        ahead.step(self._model.max_seq_len)


def _drafts(above: Mapping[Node, Node], drafted: Sequence[Node], source: str) -> list[BeamDraft]:
    """A draft for each live beam. ``above``: the search node of each draft model's node. ``drafted``: later nodes."""
    places: dict[Node, tuple[Node, int]] = {own: (tip, -1) for own, tip in above.items()}
    tokens: dict[Node, list[int]] = {tip: [] for tip in above.values()}
    parents: dict[Node, list[int]] = {tip: [] for tip in above.values()}
    for node in drafted:
        assert node.parent is not None
        tip, parent = places[node.parent]
        places[node] = tip, len(tokens[tip])
        tokens[tip].append(node.token)
        parents[tip].append(parent)
    return [(tip, Draft(tuple(tokens[tip]), tuple(parents[tip]), None, source)) for tip in tokens if tokens[tip]]
