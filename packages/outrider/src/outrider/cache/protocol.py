"""The protocol of key-value caches, for the engine and the models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from outrider.cache.pool import Pool
from outrider.cache.states import RecurrentStates

CacheKind = Literal["contiguous", "paged"]


@dataclass(frozen=True, kw_only=True)
class CacheSpec:
    """Size and layout of a cache; the model adds its own dimensions."""

    slots: int = 1  # sequences at once
    max_seq_len: int  # tokens of one sequence
    kind: CacheKind = "contiguous"
    tokens: int | None = None  # of all sequences together, in a paged cache; None: slots * max_seq_len
    block_size: int = 16
    prefix_reuse: bool = True
    pending: int = 64  # rows of a sequence that may be dropped, where a model has recurrent states
    checkpoints: int = 8  # copies of recurrent states that are kept for later sequences
    branches: int = 0  # recurrent states of beams, besides those of the slots


class KVCache(Protocol):
    """Keys and values of every sequence, one row a token, with roll-back.

    A sequence owns a *slot*; its rows are numbered from 0 and ``length(slot)`` of them are valid.
    A forward pass appends rows (``extend``), the model fills them layer by layer (``write``) and attends over them
    (``read``); afterwards the rows of refused drafts are dropped (``truncate_to``, ``keep_path``).
    """

    @property
    def max_seq_len(self) -> int:
        """Rows that one sequence can have."""
        ...

    @property
    def prefix_reuse(self) -> bool:
        """Whether sequences share the rows of their prefixes."""
        ...

    def allocate(self, tokens: Sequence[int] = (), salt: str = "") -> int:
        """Take a slot for a sequence that begins with ``tokens``.

        The slot may already hold the rows of a common prefix with an earlier sequence of the same ``salt``, but never
        the row of the last token, whose logits are due. Raises CapacityError if there is no slot.
        """
        ...

    def can_allocate(self) -> bool:
        """Whether ``allocate`` would find a slot."""
        ...

    def can_extend(self, slot: int, count: int) -> bool:
        """Whether ``extend(slot, count)`` would find room."""
        ...

    def publish_prefix(self, slot: int, tokens: Sequence[int], salt: str = "") -> None:
        """Offer the slot's first rows, which hold these verified ``tokens``, to later sequences."""
        ...

    def held_digests(self) -> list[bytes]:
        """Reusable prefixes: ``chain_digests`` of blocks of ``DIGEST_BLOCK`` tokens. Callable from any thread."""
        ...

    def forget_prefixes(self) -> None:
        """Serve no later sequence with the rows of earlier ones, as after another model's; no slot is taken."""
        ...

    def free(self, slot: int) -> None:
        """Give the slot back; its published rows may serve later sequences."""
        ...

    def zero(self, slot: int) -> None:
        """Zero a slot with possible NaN rows before it is freed."""
        ...

    def length(self, slot: int) -> int:
        """The number of valid rows."""
        ...

    def extend(self, slot: int, count: int) -> None:
        """Make room for ``count`` more rows. Raises CapacityError beyond ``max_seq_len``."""
        ...

    def write(self, layer: int, slot: int, start: int, k: Any, v: Any) -> None:
        """Store k, v: float [count, kv_heads, head_dim] as rows ``start`` and following of ``slot``."""
        ...

    def read(self, layer: int, slot: int, rows: int) -> tuple[Any, Any]:
        """Keys and values [rows, kv_heads, head_dim] from row 0; rows past the length are finite filler."""
        ...

    @property
    def pool(self) -> Pool:
        """The rows that ``table`` refers to; the arrays stay the same as long as the cache lives."""
        ...

    def table(self, slot: int, rows: int) -> list[int]:
        """The blocks of ``pool`` with the first ``rows`` rows of ``slot``; filler blocks beyond the slot's."""
        ...

    @property
    def attachments(self) -> dict[int, object]:
        """State of sequences besides rows, by slot, such as an encoder's keys and values. Freed with the slot."""
        ...

    @property
    def states(self) -> RecurrentStates | None:
        """The states of recurrent layers; None for a model without."""
        ...

    def truncate_to(self, slot: int, length: int) -> None:
        """Roll back: keep the first ``length`` rows."""
        ...

    def keep_path(self, slot: int, base: int, path: Sequence[int]) -> None:
        """Move rows ``base + path[i]`` to ``base + i``, then drop all rows after them."""
        ...

    def free_tokens(self) -> int:
        """Rows that can still be taken by new and running sequences."""
        ...

    def check(self) -> None:
        """Raise AssertionError, with all three numbers, unless free + used == total."""
        ...
