"""The tokens that a model's own head scores: a part of the vocabulary (docs/algorithms/mtp.md).

Scoring a large vocabulary takes most of a draft's time. The lower ids of a byte-pair vocabulary are its frequent
tokens, and others come from the texts at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.drafters.api import RequestView
from outrider.drafters.trained.heads import head_format
from outrider.drafters.trained.mtp_head import LEARNED
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.arena import aligned_memory
from outrider.native.plans import PANEL_OUTPUTS
from outrider.native.structs import WeightStruct
from outrider.native.weights import NativeWeight, pack_array
from outrider.utils.partitioned_store import Handle, PartitionedStore
from outrider.verify.arrays import Floats

__all__ = ["DraftTokens", "LearnedTokens", "Scored", "lower_rows"]

_CAPACITY = 64 << 20  # bytes of all domains' rows


@dataclass(frozen=True)
class Scored:
    """The tokens that one draft's logits score: the lowest ids, then those of ``more``."""

    vocabulary: DraftVocabulary
    more: NativeWeight | None


class LearnedTokens:
    """Tokens above the lowest ids that texts of one domain hold, and their rows of the LM head; a ``Store``.

    ::

        place     0    1    2    3            most - 1
        token     a    b    c    d   ...      the next new token takes the place of the oldest
    """

    def __init__(self, target: NativeLlamaModel, lowest: int, most: int) -> None:
        """``lowest``: ids below are not learned. ``most``: places, a multiple of 16."""
        self._target, self._lowest, self._most = target, lowest, most
        self._columns = np.concatenate([np.arange(lowest), np.zeros(most, np.int64)])
        self._places: dict[int, int] = {}
        self._next = 0
        self._panels: NDArray[np.uint8] | None = None
        self._struct = WeightStruct()
        self.scored = Scored(DraftVocabulary(self._columns[:lowest], target.config.vocab_size), None)
        """What a draft of this domain scores; a new object after each change."""

    @property
    def size(self) -> int:
        """Bytes of the rows."""
        return 0 if self._panels is None else self._panels.nbytes

    def evict(self) -> None:
        """Forget all tokens."""
        self._places.clear()
        self._next, self._panels = 0, None
        self._update()

    def add(self, tokens: Iterable[int]) -> None:
        """Learn the tokens that are new, in order."""
        new = [token for token in dict.fromkeys(tokens) if token >= self._lowest and token not in self._places]
        new = new[-self._most :]
        if not new:
            return
        places = [(self._next + i) % self._most for i in range(len(new))]
        own = self._columns[self._lowest :]
        for token, place in zip(new, places, strict=True):
            if self._places.get(int(own[place])) == place:
                del self._places[int(own[place])]
            own[place], self._places[token] = token, place
        self._next = (places[-1] + 1) % self._most
        self._pack(sorted({place // PANEL_OUTPUTS for place in places}))
        self._update()

    def _pack(self, panels: Sequence[int]) -> None:
        """Pack the rows of the tokens in some panels."""
        count = len(self._places)
        ids = np.concatenate([np.arange(p * PANEL_OUTPUTS, (p + 1) * PANEL_OUTPUTS) for p in panels])
        rows = self._target.lm_head_rows(self._columns[self._lowest :][np.minimum(ids, count - 1)])
        packed = pack_array(rows, head_format(self._target), context=self._target.context)
        size = int(packed.struct.panel_bytes)
        if self._panels is None:
            self._panels, self._struct = aligned_memory(self._most // PANEL_OUTPUTS * size), packed.struct
        for i, p in enumerate(panels):
            self._panels[p * size : (p + 1) * size] = packed.panels[i * size : (i + 1) * size]

    def _update(self) -> None:
        count, more = len(self._places), None
        if self._panels is not None:
            struct = WeightStruct.from_buffer_copy(self._struct)
            struct.outputs = count
            more = NativeWeight(struct, self._panels, None, self._target.context)
        columns = self._columns[: self._lowest + count].copy()
        self.scored = Scored(DraftVocabulary(columns, self._target.config.vocab_size), more)


class DraftTokens:
    """The tokens to score for the requests at hand. Requests of one domain learn from each other, and no others."""

    def __init__(self, target: NativeLlamaModel, lowest: int, most: int = LEARNED) -> None:
        """Arguments as for ``LearnedTokens``; ``lowest`` is at most the number of the LM head's rows."""
        self._ends = target.config.eos_token_ids
        self._lower = LearnedTokens(target, lowest, most).scored
        self._stores = PartitionedStore(lambda: LearnedTokens(target, lowest, most), _CAPACITY)
        self._texts: dict[str, tuple[Handle[LearnedTokens], int]] = {}  # by request: its domain, and tokens read

    def start(self, request: RequestView) -> None:
        """A request begins."""
        self._texts[request.id] = self._stores.open(request.cache_salt, request.tenant), 0

    def finish(self, request_id: str) -> None:
        """A request has ended."""
        text = self._texts.pop(request_id, None)
        if text is not None:
            self._stores.close(text[0])

    def read(self, requests: Sequence[RequestView]) -> Scored:
        """Learn from the requests' texts; returns the tokens to score in a draft of all of them.

        Requests of several domains share a draft's passes, and score the lowest ids alone.
        """
        for request in requests:
            handle, done = self._texts[request.id]
            new = request.tokens[done:]
            handle.store.add([*self._ends, *new] if not done else new)
            self._stores.settle(handle)
            self._texts[request.id] = handle, len(request.tokens)
        stores = {id(handle): handle.store for handle, _ in (self._texts[request.id] for request in requests)}
        return next(iter(stores.values())).scored if len(stores) == 1 else self._lower


def lower_rows(target: NativeLlamaModel, count: int) -> tuple[NativeWeight, bool]:
    """The first ``count`` rows of the LM head, a multiple of 16, and whether the logits' scale is part of them.

    Quantised rows are the target's own memory. Floats are rounded to 8 bits, unless the target is float32.
    """
    head, kind = target.head, head_format(target)
    if kind == "float32" or int(head.struct.layout) == _CODES:
        struct = WeightStruct.from_buffer_copy(head.struct)
        struct.outputs = count
        return NativeWeight(struct, head.panels, None, target.context), False
    rows: Floats = target.lm_head_rows(np.arange(count))
    return pack_array(rows, kind, context=target.context), True


_CODES = 3  # OUTRIDER_CODES
