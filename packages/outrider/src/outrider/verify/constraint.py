"""What a request's output must look like, as far as sampling needs to know: which tokens may come next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """Says which tokens may follow an output.

    A pure function of the output, so that it does not matter which drafts were tried before, in what order rows are
    worked out, or whether the request was preempted: what state it keeps is its own affair.
    """

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        """Which tokens may follow ``output``, the request's output so far and, in a draft, the path below it.

        Returns:
            bool [vocab], with at least one token allowed; do not modify it. None where the question does not arise:
            ``output`` has ended, or holds a token that was not allowed. A row of ``p`` may be worked out there, but
            nothing that depends on it is ever committed.

        Raises:
            GrammarError: nothing may follow though the output is not complete, or working it out takes too much.
        """
        ...


@runtime_checkable
class RowConstraint(Constraint, Protocol):
    """A constraint that also looks at the logits, as Whisper's rule of time stamps does.

    It stays a pure function: of the output and of the row that follows it, which no draft changes.
    """

    def forbid_(self, logits: NDArray[np.float32], output: Sequence[int]) -> None:
        """Set further logits (float32 [vocab], -inf where forbidden already) to -inf in place; never all of them."""
        ...


def looks_at_rows(constraint: Constraint) -> TypeGuard[RowConstraint]:
    """Whether a constraint is a ``RowConstraint``: asked for every row, and slow to find out of a protocol."""
    return _kind_looks_at_rows(type(constraint))


@cache
def _kind_looks_at_rows(kind: type) -> bool:
    return issubclass(kind, RowConstraint)
