"""The trees of ``suffix_tree`` by the native library: one call finds the places and grows the tree."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.drafters.datastore import MAX_MATCH, Datastore
from outrider.drafters.text.edited_copy import Expected
from outrider.drafters.text.occurrences import GAP, TYPE, Tokens
from outrider.drafters.text.suffix_tree import (
    COPIED,
    EDITED,
    FREE_NODES,
    LEAST,
    LEAST_EVER,
    OTHER_LIMIT,
    OWN_LIMIT,
    TABLES,
)
from outrider.native.signatures import quick
from outrider.native.structs import CopyStruct, RetrievalStruct
from outrider.verify.draft import EMPTY, Draft

_MOST_NODES = 1024  # MOST_NODES of suffix_draft.c
_RANKED = sorted({weights for table in TABLES for weights in table}, reverse=True)  # the most confident first
_WEIGHTS = array("d", [number for weights in _RANKED for number in weights])
_KINDS = array("B", [_RANKED.index(weights) for table in TABLES for weights in table])


@dataclass
class NativeTrees:
    """Grows trees; one thread at a time."""

    library: ctypes.CDLL
    _given: RetrievalStruct = field(init=False)
    _room: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._given = RetrievalStruct(
            weights=_WEIGHTS.buffer_info()[0],
            kinds=_KINDS.buffer_info()[0],
            num_weights=len(_RANKED),
            tables=len(TABLES),
            own_limit=OWN_LIMIT,
            other_limit=OTHER_LIMIT,
            free_nodes=FREE_NODES,
            least=LEAST,
            least_ever=LEAST_EVER,
        )
        self._used = (ctypes.c_int64 * (1 + OTHER_LIMIT))()
        self._make_room(32)
        self._draft = quick(self.library, "outrider_suffix_draft")

    def grow(
        self,
        own: Tokens,
        copies: Sequence[Expected],
        answers: Tokens,
        stored: Datastore | None,
        budget: int,
        depth: int,
        *,
        branching: bool,
    ) -> tuple[Draft, Sequence[int]]:
        """As ``suffix_tree.grow`` of the places in these texts, and the places of ``answers`` that count as used.

        ``copies``: from ``own`` if their tokens are not edited.
        """
        given, budget = self._given, min(budget, _MOST_NODES)
        given.text, given.tokens = own.buffer_info()
        given.answers, given.answered = answers.buffer_info()
        if stored is None:
            given.places = given.stored_tokens = 0
        else:
            given.places, given.order, given.stored_tokens, given.stored = stored.addresses
        kept = self._take_copies(copies) if copies else None
        given.num_copies = len(copies)
        if not copies:
            given.edited_tokens = 0
        given.nodes, given.depth, given.branching = budget, depth, branching
        if budget > self._room:
            self._make_room(budget)
        count = self._draft(*self._arguments)
        del kept
        if count < 0:
            raise MemoryError if count == -2 else ValueError("the texts cannot be searched")
        draft = EMPTY
        if count:
            tokens, parents = tuple(self._tokens[:count]), tuple(self._parents[:count])
            draft = Draft(tokens, parents, None, "suffix", tuple(self._scores[:count]))
        return draft, self._used[1 : 1 + self._used[0]] if self._used[0] else ()

    def _make_room(self, nodes: int) -> None:
        """For the nodes of a tree."""
        self._room = nodes
        self._tokens, self._parents = (ctypes.c_int32 * nodes)(), (ctypes.c_int32 * nodes)()
        self._scores = (ctypes.c_double * nodes)()
        parts = self._given, self._tokens, self._parents, self._scores, self._used
        self._arguments = [ctypes.addressof(part) for part in parts]

    def _take_copies(self, copies: Sequence[Expected]) -> object:
        """Describe the copies; the library reads them from what is returned."""
        edits, described = array(TYPE), (CopyStruct * len(copies))()
        for each, copy in zip(described, copies, strict=True):
            each.table, each.edited = TABLES.index(EDITED if copy.edited else COPIED), copy.edited
            each.match, each.end = min(copy.match, MAX_MATCH), copy.end
            if copy.edited:
                each.end += len(edits)
                edits.extend(copy.tokens)
                edits.append(GAP)
        self._given.copies = ctypes.addressof(described)
        self._given.edits, self._given.edited_tokens = edits.buffer_info()
        return edits, described
