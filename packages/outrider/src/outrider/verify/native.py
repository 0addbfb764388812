"""Sampling in the native library (``sample.h``): one or two passes over a row where NumPy takes several.

The library's noise has the same bits on every processor. NumPy's noise differs from it, and between machines, in the
last bit, so a process uses one of the two for all draws.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.native.context import NativeContext
from outrider.native.library import library, native_library
from outrider.verify.truncation import log_of

Row = NDArray[np.float32]  # [vocab]

_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_NO_MEMORY = 1  # outrider_status
KEY_BYTES = 24
_FUNCTIONS = (
    *("first_largest", "most_likely", "gumbel", "gumbel_of", "gumbel_of_tokens"),
    *("log_weights", "draw", "sample"),
)


class SamplingStruct(ctypes.Structure):
    """``outrider_sampling``: the options that turn logits into log-weights."""

    _fields_ = (
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_double),
        ("temperature", ctypes.c_float),
        ("least", ctypes.c_float),
    )


class NativeSampler:
    """The functions of ``sample.h`` on NumPy arrays. ``keys``: 24 bytes, six little-endian words of 32 bits."""

    def __init__(self, context: NativeContext) -> None:
        self._context, functions = context, native_library()
        self._functions = {name: getattr(functions, f"outrider_{name}") for name in _FUNCTIONS}

    def first_largest(self, rows: NDArray[np.float32], width: int) -> list[tuple[int, float]]:
        """The index and value of each row's first largest entry; NaN counts as the largest.

        Runs in every step right after the forward pass, when NumPy's code is not in the processor's caches.

        Args:
            rows: [n, width or more]; columns beyond ``width`` are ignored.
        """
        if width > rows.shape[1]:
            raise ValueError(f"rows of {rows.shape[1]} numbers have no {width}")
        rows, _, stride = _strided(rows)
        n = rows.shape[0]
        index, value = (ctypes.c_int64 * n)(), (ctypes.c_float * n)()
        self._call("first_largest", n, width, stride, rows.ctypes.data, *_pointers(index, value))
        return list(zip(index, value, strict=True))

    def most_likely(
        self, rows: NDArray[np.float32], count: int, temperature: float = 1.0
    ) -> tuple[NDArray[np.int64], Row, list[int]]:
        """The ``count`` most likely tokens of each row of logits, float32 [n, vocab]; ties go to the lower id.

        Returns:
            tokens and their log-probabilities [n, count], and the number of possible tokens among them in each row;
            -1 if the row's largest logit is not finite.
        """
        rows, width, stride = _strided(rows)
        tokens = np.empty((len(rows), count), dtype=np.int64)
        scores = np.empty((len(rows), count), dtype=np.float32)
        found = np.empty(len(rows), dtype=np.int64)
        self._call(
            "most_likely", len(rows), width, stride, rows.ctypes.data, temperature, count,
            tokens.ctypes.data, scores.ctypes.data, found.ctypes.data,
        )  # fmt: skip
        return tokens, scores, found.tolist()

    def gumbel(self, keys: bytes, vocab_size: int) -> Row:
        """Standard Gumbel noise: float32 [vocab_size]."""
        out = np.empty(vocab_size, dtype=np.float32)
        self._call("gumbel", vocab_size, _whole(keys), out.ctypes.data)
        return out

    def gumbel_of_tokens(self, keys: bytes, tokens: NDArray[np.int64]) -> Row:
        """The entries of ``gumbel`` for the token ids ``tokens``, bit for bit: float32 [len(tokens)]."""
        tokens, out = np.ascontiguousarray(tokens, np.int64), np.empty(len(tokens), dtype=np.float32)
        self._call("gumbel_of_tokens", len(tokens), tokens.ctypes.data, _whole(keys), out.ctypes.data)
        return out

    def gumbel_of(self, v: Row) -> Row:
        """``-log(-log1p(-v))`` for 2**-65 <= ``v`` < 1; the error is below 2**-22 plus a unit in the last place."""
        v = np.ascontiguousarray(v, np.float32)
        out = np.empty_like(v)
        self._call("gumbel_of", len(v), v.ctypes.data, out.ctypes.data)
        return out

    def log_weights(self, logits: Row, params: SamplingParams) -> tuple[Row, float]:
        """``shaping.log_weights`` and the largest logit; the log-weights are valid only if that is finite."""
        logits, largest = np.ascontiguousarray(logits, np.float32), ctypes.c_float()
        out = np.empty_like(logits)
        options = sampling_struct(params)
        self._call(
            "log_weights", len(logits), logits.ctypes.data, *_pointers(options), out.ctypes.data, *_pointers(largest)
        )
        return out, largest.value

    def draw(self, log_weights: Row, keys: bytes) -> tuple[int, float]:
        """The token with the largest score, log-weight + noise, and that score; NaN counts as the largest."""
        log_weights, token, score = np.ascontiguousarray(log_weights, np.float32), ctypes.c_int64(), ctypes.c_float()
        self._call("draw", len(log_weights), log_weights.ctypes.data, _whole(keys), *_pointers(token, score))
        return token.value, score.value

    def sample(self, logits: Row, params: SamplingParams, keys: bytes) -> tuple[int, float]:
        """``draw`` from ``log_weights`` without storing them, and the largest logit; valid only if that is finite."""
        logits, token, largest = np.ascontiguousarray(logits, np.float32), ctypes.c_int64(), ctypes.c_float()
        options = sampling_struct(params)
        self._call(
            "sample", len(logits), logits.ctypes.data, *_pointers(options), _whole(keys), *_pointers(token, largest)
        )
        return token.value, largest.value

    def _call(self, name: str, *arguments: float | bytes) -> None:
        status = self._functions[name](self._context.address, *arguments)
        if status == _NO_MEMORY:
            raise MemoryError(f"outrider_{name} found no memory for a row")
        assert status == 0, f"outrider_{name} does not take {arguments}"


@cache
def sampler() -> NativeSampler | None:
    """The library's sampling; None without a native library."""
    return None if library() is None else NativeSampler(NativeContext(1))


def _whole(keys: bytes) -> bytes:
    if len(keys) != KEY_BYTES:
        raise ValueError(f"keys of {len(keys)} bytes are not {KEY_BYTES} bytes")
    return keys


def _strided(rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], int, int]:
    """Rows [n, width] with contiguous entries, their width, and their stride in entries."""
    rows = np.asarray(rows, np.float32)
    width = rows.shape[1]
    apart = rows.strides[0] >= width * rows.itemsize or len(rows) == 1  # the stride of a single row is arbitrary
    if rows.strides[1] != rows.itemsize or rows.strides[0] % rows.itemsize or not apart:
        rows = np.ascontiguousarray(rows)
    return rows, width, max(rows.strides[0] // rows.itemsize, width)


def clipped_temperature(params: SamplingParams) -> np.float32:
    """The temperature, clipped to float32's normal range: 0 / 0 and inf / inf would be NaN."""
    return np.float32(min(max(params.temperature, _LEAST), _MOST))


def sampling_struct(params: SamplingParams) -> SamplingStruct:
    """The options that turn logits into log-weights, as the library takes them."""
    least = log_of(params.min_p) if params.min_p > 0.0 else -math.inf
    return SamplingStruct(params.top_k, params.top_p, float(clipped_temperature(params)), least)


def _pointers(*values: ctypes._CData) -> tuple[int, ...]:
    return tuple(ctypes.addressof(value) for value in values)
