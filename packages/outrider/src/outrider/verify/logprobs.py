"""Reported log-probabilities of chosen and likeliest tokens.

A row's are the same bits for a generated token and for the same token of a prompt, and with any ``count``.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from outrider.errors import NumericalError
from outrider.verify import native
from outrider.verify.arrays import Array, Floats, host
from outrider.verify.noise import largest

_REPORTED = 5  # tokens

Likeliest = tuple[NDArray[np.int64], NDArray[np.float32], list[int]]


class TokenLogprobs(Sequence[Mapping[int, float]]):
    """Per row, the log-probability of the chosen token, then those of the likeliest tokens, best first.

    Rows are stored as arrays and become dictionaries when read; dictionaries would take ten times the memory.
    """

    def __init__(self) -> None:
        self._parts: list[_RowGroup] = []
        self._ends: list[int] = []  # rows up to the end of each part

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Mapping[int, float]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Mapping[int, float]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[int, float] | list[Mapping[int, float]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        part = bisect_right(self._ends, at)
        return self._parts[part].row(at - (self._ends[part - 1] if part else 0))

    def add(self, logits: Array, taken: Sequence[int], count: int) -> None:
        """Append the rows of ``token_logprobs`` with the same arguments and errors."""
        self._parts.append(_part(logits, taken, count))
        self._ends.append(len(self) + len(taken))


@dataclass(frozen=True)
class LogitsReport:
    """The logits that a token was chosen from, before any sampling option."""

    digest: str
    """16 digits of a hash of their bits."""
    logprobs: Mapping[int, float]
    """Log-probabilities of the token and of the five likeliest."""

    @classmethod
    def of(cls, logits: Floats, taken: int) -> LogitsReport:
        """``logits``: float32 [vocab] on the CPU."""
        row = np.ascontiguousarray(logits)
        digest = hashlib.blake2b(row.tobytes(), digest_size=8).hexdigest()
        return cls(digest, token_logprobs(row[None], [taken], _REPORTED)[0])


@dataclass(frozen=True)
class _RowGroup:
    """Rows that were computed together."""

    taken: NDArray[np.int32]  # [n], the chosen tokens
    own: NDArray[np.float32]  # [n], their log-probabilities
    tokens: NDArray[np.int32]  # [n, count]
    values: NDArray[np.float32]  # [n, count]
    found: NDArray[np.int32]  # [n], the number of possible tokens among the ``count``

    def row(self, i: int) -> Mapping[int, float]:
        n = self.found[i]
        best = zip(self.tokens[i, :n].tolist(), self.values[i, :n].tolist(), strict=True)
        return {int(self.taken[i]): float(self.own[i])} | dict(best)


def token_logprobs(logits: Array, taken: Sequence[int], count: int) -> list[Mapping[int, float]]:
    """Per row, the log-probability of the chosen token, then those of the ``count`` likeliest tokens, best first.

    Impossible tokens (a logit of -inf) are never among the likeliest. The native library computes all rows in one
    call, which releases Python's global lock.

    Args:
        logits: any float type [n, vocab], without padding.
        taken: the chosen token of each row.

    Raises:
        NumericalError: the largest logit of a row is not finite.
    """
    part = _part(logits, taken, count)
    return [part.row(i) for i in range(len(taken))]


def likeliest(rows: Floats, count: int) -> Likeliest:
    """The ``count`` likeliest tokens of each row of logits, float32 [n, vocab] on the CPU; ties go to the lower id.

    Returns:
        tokens and their log-probabilities, [n, count] each, and the number of possible tokens in each row.

    Raises:
        NumericalError: the largest logit of a row is not finite.
    """
    sampler = native.sampler()
    tokens, values, found = _by_numpy(rows, count) if sampler is None else sampler.most_likely(rows, count)
    if -1 in found:
        raise NumericalError(f"the model's logits after {found.count(-1)} tokens are not finite: check its weights")
    return tokens, values, found


def _part(logits: Array, taken: Sequence[int], count: int) -> _RowGroup:
    rows = host(logits)
    wanted = min(max(1, count), rows.shape[1])
    tokens, values, found = likeliest(rows, wanted)
    indices, ids = np.arange(len(rows)), np.array(taken, dtype=np.int32)
    best = rows[indices, tokens[:, 0]]
    own = rows[indices, ids] - best + values[:, 0]
    possible = np.minimum(np.array(found, dtype=np.int32), count)
    return _RowGroup(ids, own, tokens[:, :count].astype(np.int32), values[:, :count].copy(), possible)


def _by_numpy(rows: Floats, count: int) -> Likeliest:
    """As ``NativeSampler.most_likely``."""
    tokens = np.zeros((len(rows), count), np.int64)
    values = np.full((len(rows), count), -np.inf, np.float32)
    found: list[int] = []
    for row, own, scores in zip(rows, tokens, values, strict=True):
        best = row.max()
        if not np.isfinite(best):
            found.append(-1)
            continue
        chosen = largest(row, count)
        own[: len(chosen)] = chosen
        total = np.float32(np.log(np.exp(row - best, dtype=np.float64).sum()))
        scores[: len(chosen)] = row[chosen] - best - total
        found.append(len(chosen))
    return tokens, values, found
