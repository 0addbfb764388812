"""From logits to the target distribution ``p``: the only place where sampling options act.

Each row is computed alone and in the same shape, so that its bits do not depend on the other requests of a batch or
the other nodes of a tree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.errors import InvalidRequestError
from outrider.verify import shaping
from outrider.verify.arrays import Array, Floats, host
from outrider.verify.batch_argmax import BatchArgmax
from outrider.verify.constraint import Constraint, looks_at_rows
from outrider.verify.draft import Draft
from outrider.verify.logits_processors import apply_masks_, apply_penalties_, changes_logits
from outrider.verify.logprobs import LogitsReport, token_logprobs
from outrider.verify.noise import Noise
from outrider.verify.tree import path_to


@dataclass(frozen=True)
class Context:
    """The tokens before a row's position; ``output`` includes the draft path that leads to the row."""

    prompt: Sequence[int]
    output: Sequence[int]


class TokenView(Sequence[int]):
    """A view of ``tokens[start:stop]`` of a list that only grows; reading copies."""

    def __init__(self, tokens: list[int], start: int, stop: int) -> None:
        self._tokens, self._start, self._stop = tokens, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._tokens[self._start : self._stop][index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._tokens[self._start : self._stop])


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse token ids outside the model's vocabulary. Called once, on admission.

    Raises:
        InvalidRequestError: an id in ``logit_bias``, ``allowed_token_ids``, ``banned_token_ids`` or
            ``stop_token_ids`` is negative, or not below ``vocab_size``.
    """
    for name in ("logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        check_ids(name, tuple(getattr(params, name) or ()), vocab_size)


def check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise ``InvalidRequestError`` for the first of ``ids`` outside the vocabulary. ``name``: the ids' option."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    token = next(token for token in ids if not 0 <= token < vocab_size)
    raise InvalidRequestError(
        f"{name} names token {token}, but the model's vocabulary has {vocab_size} tokens: "
        f"use ids from 0 to {vocab_size - 1}",
        param=name,
    )


def log_weights(
    logits: Array,
    params: Sequence[SamplingParams],
    contexts: Sequence[Context],
    stop_ids: Sequence[int] = (),
    vocab_size: int | None = None,
    constraint: Constraint | None = None,
) -> Floats:
    """The log-weights of each row's distribution after all sampling options: float32 [rows, vocab].

    The largest log-weight of each row is 0.0, excluded tokens have -inf, and greedy rows are one-hot at the first
    largest logit. ``probs`` normalises them. Options act in the order documented on ``SamplingParams``.

    Args:
        logits: any float type [rows, vocab]; -inf is an impossible token.
        params: one per row.
        contexts: one per row.
        stop_ids: the model's end-of-text ids, which ``min_tokens`` excludes along with ``stop_token_ids``.
        vocab_size: columns from here on are padding of the LM head and never drawn; None: no padding.
        constraint: the constraint on every row's output.

    Raises:
        NumericalError: a row holds NaN or +inf, or its options exclude every token.
        GrammarError: from ``Constraint.mask``.
    """
    rows = host(logits)
    out = np.empty_like(rows)
    for i, (options, context) in enumerate(zip(params, contexts, strict=True)):
        out[i] = _log_weights(_processed(rows[i], options, context, stop_ids, vocab_size, constraint), options)
    return out


def probs(log_weights: Floats) -> NDArray[np.float64]:
    """Normalise log-weights: float [..., vocab] -> float64 [..., vocab]. NaN, +inf or all -inf gives a NaN row."""
    x = np.asarray(log_weights, np.float64)
    with np.errstate(invalid="ignore"):  # inf - inf
        weights: NDArray[np.float64] = np.exp(x - x.max(axis=-1, keepdims=True))
    normalised: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return normalised


class TargetRows:
    """``p`` for one request in one step: row 0 after the last committed token, row ``1 + i`` after draft node ``i``.

    Rows are computed on demand: verification reads few of them.
    """

    def __init__(
        self,
        logits: Array,
        params: SamplingParams,
        context: Context,
        draft: Draft,
        stop_ids: Sequence[int] = (),
        vocab_size: int | None = None,
        constraint: Constraint | None = None,
        *,
        first: int = 0,
        largest: BatchArgmax | None = None,
    ) -> None:
        """Args:
        logits: any float type [rows, vocab]; the request has the ``1 + len(draft)`` rows from ``first`` on.
        context: the request's tokens, without the draft.
        largest: the arg-max of the same logits, shared by the requests of one forward pass.
        """
        self._logits, self._first = logits, first
        self._largest = BatchArgmax(logits, vocab_size) if largest is None else largest
        self._params = params
        self._context = context
        self._draft = draft
        self._stop_ids = stop_ids
        self._vocab_size = vocab_size
        self._constraint = constraint
        self._rows: dict[int, Floats] = {}

    def log_weights(self, row: int) -> Floats:
        """Log-weights after all sampling options: float32 [vocab], see ``log_weights``; do not modify."""
        if row not in self._rows:
            self._rows[row] = self._row(row, self._params)
        return self._rows[row]

    @property
    def greedy(self) -> bool:
        """Whether every row is one-hot."""
        return self._params.greedy

    def untempered(self, row: int) -> Floats:
        """Log-weights with temperature 1, no truncation and all other options: float32 [vocab], largest 0."""
        return self._row(row, self._params.untempered)

    def probs(self, row: int) -> NDArray[np.float64]:
        """Probabilities after all sampling options: float64 [vocab]."""
        return probs(self.log_weights(row))

    def draw(self, row: int, noise: Noise, position: int) -> int:
        """The target's own token at ``position``, given that the row's path precedes it."""
        if self._constraint is not None or changes_logits(self._params, len(self._context.output)):
            if self._params.greedy:
                return int(self.log_weights(row).argmax())  # one-hot: noise cannot matter
            return noise.draw_from_logits(self._processed(row, self._params), self._params, position)
        if not self._params.greedy:
            logits = self._largest.on_cpu(self._first + row)[: self._vocab_size]
            return noise.draw_from_logits(logits, self._params, position)
        token, best = self._largest[self._first + row]
        if not -math.inf < best < math.inf:
            shaping.check_largest(best, self._params)
        return token

    def reports(self, rows: Sequence[int], taken: Sequence[int]) -> list[LogitsReport]:
        """A digest of the logits of each row, and its likeliest tokens. Errors are those of ``token_logprobs``."""
        logits = [self._largest.on_cpu(self._first + row)[: self._vocab_size] for row in rows]
        return [LogitsReport.of(row, token) for row, token in zip(logits, taken, strict=True)]

    def most_likely(self, row: int) -> int:
        """The token of the first largest logit, before any sampling option."""
        return self._largest[self._first + row][0]

    def likeliest(self, count: int) -> tuple[NDArray[np.int64], Floats]:
        """Every row's likeliest tokens and their probabilities, before any sampling option: [rows, count] each.

        Probabilities are normalised over these tokens, which avoids a sum over the vocabulary.
        """
        tokens, logits = self._largest.likeliest(self._first, 1 + len(self._draft), count)
        return tokens, np.nan_to_num(probs(logits)).astype(np.float32)

    def token_logprobs(self, rows: Sequence[int], taken: Sequence[int], count: int) -> list[Mapping[int, float]]:
        """``logprobs.token_logprobs`` for the tokens ``taken`` at ``rows``."""
        if self._params.logprobs_mode == "raw_logprobs":
            logits = self._logits[[self._first + row for row in rows], : self._vocab_size]
        else:
            weights = self.untempered if self.greedy else self.log_weights
            logits = np.stack([weights(row)[: self._vocab_size] for row in rows])
        return token_logprobs(logits, taken, count)

    def _row(self, row: int, params: SamplingParams) -> Floats:
        return _log_weights(self._processed(row, params), params)

    def _processed(self, row: int, params: SamplingParams) -> NDArray[np.float32]:
        path = (self._draft.tokens[i] for i in path_to(self._draft.parents, row - 1))
        context = Context(self._context.prompt, [*self._context.output, *path])
        return _processed(
            self._largest.on_cpu(self._first + row), params, context, self._stop_ids, self._vocab_size, self._constraint
        )


def _processed(
    logits: Floats,
    params: SamplingParams,
    context: Context,
    stop_ids: Sequence[int],
    vocab_size: int | None,
    constraint: Constraint | None,
) -> NDArray[np.float32]:
    """A copy of a row of logits after penalties, bias and masks, with -inf in padding: float32 [vocab]."""
    x = logits.copy()
    if vocab_size is not None:
        x[vocab_size:] = -np.inf
    mask = None if constraint is None else constraint.mask(context.output)
    if mask is not None or changes_logits(params, len(context.output)):
        shaping.check_finite(float(x.max()))  # before an option can hide a NaN
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # the results are checked instead
            apply_penalties_(x, params, context.prompt, context.output)
            apply_masks_(x, params, context.output, stop_ids, mask)
            if constraint is not None and mask is not None and looks_at_rows(constraint):
                constraint.forbid_(x, context.output)
    return x


def _log_weights(x: NDArray[np.float32], params: SamplingParams) -> Floats:
    """One row of ``log_weights``, from processed logits: float32 [vocab]. May write into ``x``."""
    if not params.greedy:
        return shaping.log_weights(x, params)
    token = int(x.argmax())  # ties: the first; NaN counts as the largest
    shaping.check_largest(float(x[token]), params)
    x.fill(-np.inf)
    x[token] = 0.0
    return x
