"""From processed logits to log-weights: temperature, then top-k, top-p and min-p (``truncation``)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.errors import NoTokenError, NumericalError
from outrider.verify import native
from outrider.verify.truncation import truncate_


def log_weights(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float32]:
    """The log-weights of a row of processed logits: float32 [vocab] -> float32 [vocab].

    The largest log-weight is 0.0, excluded tokens have -inf. ``params`` must not be greedy.

    Raises:
        NumericalError: the largest logit is NaN, or infinite.
    """
    sampler = native.sampler()
    if sampler is None:
        return numpy_log_weights(logits, params)
    row, largest = sampler.log_weights(logits, params)
    check_largest(largest, params)
    return row


def numpy_log_weights(logits: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float32]:
    """As ``log_weights``, in NumPy.

    The native library gives the same bits, except that its sums for top-p may differ in the last digits.
    """
    best = logits.max()  # NaN if any entry is NaN
    check_largest(float(best), params)
    with np.errstate(over="ignore"):
        # Subtracting first keeps the likeliest tokens precise and the largest weight at exp(0).
        x: NDArray[np.float32] = logits - best
        x /= native.clipped_temperature(params)
        truncate_(x, params)
    return x


def check_finite(largest: float) -> None:
    """Check a row of logits by its maximum ``largest``, which is NaN if any entry is NaN.

    Raises:
        NumericalError: ``largest`` is NaN or +inf.
    """
    if math.isnan(largest) or largest == math.inf:
        raise NumericalError(
            f"a row of logits holds {largest}: "
            "the model's weights or the request's penalties or logit_bias are at fault"
        )


def check_largest(largest: float, params: SamplingParams) -> None:
    """As ``check_finite``; also raises ``NoTokenError`` or ``NumericalError`` if every logit is -inf."""
    check_finite(largest)
    if largest == -math.inf:
        named = ("structured", "allowed_token_ids", "banned_token_ids", "min_tokens")
        options = [name for name in named if getattr(params, name)]
        if options:
            raise NoTokenError(f"no token is possible: relax {', '.join(options)}")
        raise NumericalError("no token is possible: the model gave every token a logit of -inf")
