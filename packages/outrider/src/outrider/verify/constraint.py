"""Constraints on a request's output, such as a grammar: the tokens that may come next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """Determines the tokens that may follow an output.

    ``mask`` is a pure function of the output: results must not depend on earlier drafts, on the order in which rows
    are computed, or on preemption. Internal state may only be a cache.
    """

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        """The tokens allowed after ``output``: the request's output so far and, in a draft, the path to the row.

        Returns:
            bool [vocab], with at least one token allowed; do not modify it. None if ``output`` is complete or holds
            a token that was not allowed. A row of ``p`` may be computed there, but no token that depends on it is
            committed.

        Raises:
            GrammarError: no token may follow an incomplete output, or the mask exceeds the limits on time and size.
        """
        ...


@runtime_checkable
class RowConstraint(Constraint, Protocol):
    """A constraint that also reads the logits, like Whisper's rule for time stamps.

    ``forbid_`` is a pure function of the output and its row of logits, which drafts do not change.
    """

    def forbid_(self, logits: NDArray[np.float32], output: Sequence[int]) -> None:
        """Change further logits in place, never all to -inf: float32 [vocab], -inf where ``mask`` forbids a token."""
        ...


def looks_at_rows(constraint: Constraint) -> TypeGuard[RowConstraint]:
    """Whether a constraint is a ``RowConstraint``. Cached by type: ``isinstance`` with a protocol is slow."""
    return _kind_looks_at_rows(type(constraint))


@cache
def _kind_looks_at_rows(kind: type) -> bool:
    return issubclass(kind, RowConstraint)
