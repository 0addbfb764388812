"""Randomness that belongs to a place, not to a call: counter-based streams (Salmon et al. 2011, "Random123").

Every number is a pure function of (seed, purpose, position, node, token id). Nothing is consumed and nothing
advances, so results cannot depend on the order of calls, on other requests, or on whether a draft was made.

A token is drawn by the Gumbel-max trick: ``argmax(log w + g)`` with independent standard Gumbel ``g`` picks
token ``i`` with probability ``w_i / sum(w)``. The same ``g`` used for two distributions couples their draws.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import OrderedDict
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.errors import NumericalError
from outrider.verify import native, shaping
from outrider.verify.arrays import Array, Floats, host

Words = NDArray[np.uint32]

_PAD = 1024  # row widths are rounded up to a multiple of this
_GROUP = 64  # scores of which the largest is found first
_KEPT_ROWS = 16  # rows of a request kept from drafting to verification and to the next step
_COARSE = np.uint32(1 << 24)  # hashes below this have fewer bits than a float32 can hold

# 2**-32, less one part in 2**24 so that the largest hash, which float32 rounds to 2**32, stays below 1. Exact.
_UNIT = np.float32((1 - 2.0**-24) * 2.0**-32)


class Purpose(Enum):
    """What a number is for. Streams of different purposes are independent."""

    MATCH = b"outrider-match"  # one row per absolute position, shared by draft and target: matching only
    DRAFT = b"outrider-draft"  # a drafter's own draw, for verifiers that need it independent of their own
    ACCEPT = b"outrider-accept"  # the accept test
    RECOVER = b"outrider-recover"  # the recovered or bonus token
    ORDER = b"outrider-order"  # the order in which siblings are judged


class Noise:
    """The randomness of one request.

    ``gumbel`` returns ``g = -log(E)``, ``E = -log1p(-v)``, with ``v`` in (0, 1) built from a 32-bit hash, and
    from 64 bits where the hash is small, so that ``v`` has a float32's full 24 bits right down to 2**-40 and is
    never 0 or 1: ``g`` is finite, between -2.82 and 45.1. Small ``v`` are the large ``g``, those that win.

    How far a draw is from exact, given ideal hash bits and log-weights whose largest is 0:

    * Rounding moves ``v`` by at most ``2**-22 v + 2**-65``. Let ``b_i``, a function of the other tokens' noise,
      be the value below which ``v_i`` makes token ``i`` win. Rounding ``v_i`` changes the outcome only if it
      carries ``v_i`` across ``b_i``: probability at most ``E[2 (2**-22 b_i + 2**-65)]``. As ``E[b_i]`` is the
      probability that ``i`` wins, the sum over tokens is ``2**-21 + vocab * 2**-64``, whatever the distribution.
    * Logarithms and the final sum move the best scores, which are below 32, by less than ``2**-17`` each: the
      library's two logarithms are off by at most ``2**-22`` and a unit in the last place together, NumPy's by 4 units
      each. The two best of a Gumbel race are closer than ``t`` with probability at most ``t``
      (``docs/algorithms/noise.md``), so this adds at most ``2**-16``.

    Total variation distance: below 2e-5, a bound that ignores that roundings go both ways.
    """

    def __init__(self, seed: int) -> None:
        """``seed``: any integer; different integers of whatever size are different streams."""
        self.seed = seed
        digits = seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True)
        self._hashes = {p: hashlib.blake2b(digits, digest_size=32, person=p.value) for p in Purpose}
        self._rows: OrderedDict[tuple[int, int, int], Floats] = OrderedDict()

    def gumbel(self, position: int, vocab_size: int, purpose: Purpose = Purpose.MATCH, node: int = 0) -> Floats:
        """Standard Gumbel noise, float32 [vocab_size]; do not modify it.

        Entry ``i`` depends on the token id ``i``, not on ``vocab_size``: a smaller vocabulary's row is a prefix.
        """
        if purpose is not Purpose.MATCH:
            return self._row(position, vocab_size, purpose, node)
        key = (position, node, vocab_size)
        row = self._rows.pop(key, None)
        if row is None:
            row = self._row(position, vocab_size, purpose, node)
            while len(self._rows) >= _KEPT_ROWS:
                self._rows.popitem(last=False)
        self._rows[key] = row
        return row

    def gumbel_of(self, tokens: NDArray[np.int64], position: int) -> NDArray[np.float32]:
        """The entries of ``gumbel(position, ...)`` of some token ids alone: float32 [len(tokens)]."""
        keys, sampler = self._row_keys(position, Purpose.MATCH, 0), native.sampler()
        if sampler is not None:
            return sampler.gumbel_of_tokens(keys, tokens)
        return numpy_gumbel(keys, int(tokens.max(initial=0)) + 1)[tokens]

    def uniform(self, position: int, purpose: Purpose, node: int = 0) -> float:
        """A number in [0, 1) with 53 random bits, independent of ``gumbel`` with the same arguments."""
        return (int.from_bytes(self._digest(position, purpose, node)[24:], "little") >> 11) * 2.0**-53

    def generator(self, position: int, purpose: Purpose, node: int = 0) -> np.random.Generator:
        """NumPy's generator for values that are not tokens: its stream belongs to the same place."""
        key = np.frombuffer(self._digest(position, purpose, node)[:16], dtype="<u8")
        return np.random.Generator(np.random.Philox(key=key))

    def draw(self, log_weights: Array, position: int, purpose: Purpose = Purpose.MATCH, node: int = 0) -> int:
        """Draw a token with probability proportional to ``exp(log_weights)``.

        Args:
            log_weights: [vocab], read as float32, not necessarily normalised; -inf is impossible.

        Raises:
            NumericalError: a weight is NaN or +inf, or all are -inf.
        """
        weights, sampler = host(log_weights), native.sampler()
        if sampler is not None:
            token, score = sampler.draw(weights, self._row_keys(position, purpose, node))
        else:
            row = self.gumbel(position, len(weights), purpose, node)
            scores = weights + row
            token = int(scores.argmax())
            score = float(scores[token])
        if not math.isfinite(score):  # NaN counts as the largest, so one look at the winner checks every entry
            raise NumericalError(
                f"cannot draw the token at position {position}: the best score is {score}; "
                "weights must not be NaN or +inf, and at least one must be possible"
            )
        return token

    def draw_from_logits(
        self,
        logits: NDArray[np.float32],
        params: SamplingParams,
        position: int,
        purpose: Purpose = Purpose.MATCH,
        node: int = 0,
    ) -> int:
        """``draw`` of ``shaping.log_weights(logits, params)``, without a row of these where there is the library.

        Args:
            logits: float32 [vocab], after all logits processors.
            params: not greedy.

        Raises:
            NumericalError: the largest logit is NaN, or infinite.
        """
        sampler = native.sampler()
        if sampler is None:
            return self.draw(shaping.log_weights(logits, params), position, purpose, node)
        token, largest = sampler.sample(logits, params, self._row_keys(position, purpose, node))
        shaping.check_largest(largest, params)
        return token

    def draw_without_replacement(
        self, log_weights: Array, count: int, position: int, purpose: Purpose = Purpose.MATCH, node: int = 0
    ) -> list[int]:
        """Draw up to ``count`` different tokens, one after another without replacement; the first is ``draw``'s.

        Raises:
            NumericalError: as ``draw``.
        """
        weights = host(log_weights)
        first = self.draw(weights, position, purpose, node)
        row = self.gumbel(position, len(weights), purpose, node)
        scores = weights + row
        ranked = [int(token) for token in largest(scores, count)]
        return [first, *(token for token in ranked if token != first)][:count]

    def _digest(self, position: int, purpose: Purpose, node: int) -> bytes:
        # Both numbers have a fixed width and follow the seed's digits, so no two keys share a byte string.
        h = self._hashes[purpose].copy()
        h.update(position.to_bytes(8, "little", signed=True) + node.to_bytes(8, "little", signed=True))
        return h.digest()

    def _row_keys(self, position: int, purpose: Purpose, node: int) -> bytes:
        """Six words of 32 bits, little end first, for the hashes of a row."""
        return self._digest(position, purpose, node)[:24]

    def _row(self, position: int, vocab_size: int, purpose: Purpose, node: int) -> Floats:
        keys = self._row_keys(position, purpose, node)
        sampler = native.sampler()
        return sampler.gumbel(keys, vocab_size) if sampler else numpy_gumbel(keys, vocab_size)


def largest(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Where the ``count`` largest are, largest first, the first of equals first; -inf is never among them."""
    bound = -np.inf
    maxima = scores[: len(scores) // _GROUP * _GROUP].reshape(_GROUP, -1).max(axis=0, initial=-np.inf)
    if 0 < count <= len(maxima):
        bound = np.partition(maxima, -count)[-count]  # which at least ``count`` reach, and seldom many more
    candidates = np.flatnonzero((scores >= bound) & (scores > -np.inf))
    return candidates[np.argsort(-scores[candidates], kind="stable")][:count]


def numpy_gumbel(keys: bytes, vocab_size: int) -> NDArray[np.float32]:
    """One row, always evaluated alone, single-threaded and at a padded width.

    Vectorised logarithms may differ in the last bit from the scalar code that handles the rest of a row whose width
    is no multiple of the vector's, or of a thread's share. Here no such rest exists, so that the bits of an entry
    depend on nothing but its key.
    """
    words = np.frombuffer(keys, dtype="<u4")
    table = _token_table(-(-vocab_size // _PAD) * _PAD)
    h = _mix(table, words[0], words[1], words[2])
    v = h.astype(np.float32)
    v *= _UNIT
    small = np.flatnonzero(h < _COARSE)
    low = _mix(table[small], words[3], words[4], words[5])
    v[small] = (h[small] * 2.0**32 + low + 0.5) * 2.0**-64
    np.log1p(np.negative(v, out=v), out=v)
    np.log(np.negative(v, out=v), out=v)
    return np.negative(v, out=v)[:vocab_size]


def fresh_seed() -> int:
    """A seed for a request that came without one: 63 random bits, so that it fits any client's integers."""
    return secrets.randbits(63)


def _mix(table: Words, k0: np.uint32, k1: np.uint32, k2: np.uint32) -> Words:
    """Hash each entry under three keys: uint32 [n] -> uint32 [n], two multiply-xorshift rounds ("lowbias32").

    Keys enter before, between and after the rounds: with one key alone the row of one key would be another
    key's row in a different order, and rows of different positions would not be independent.
    """
    h = table ^ k0
    h *= np.uint32(0x7FEB352D)
    h ^= h >> np.uint32(15)
    h += k1
    h *= np.uint32(0x846CA68B)
    h ^= h >> np.uint32(16)
    h += k2
    return h


@lru_cache(maxsize=8)
def _token_table(width: int) -> Words:
    """A well mixed word per token id: uint32 [width], shared by all rows."""
    h = np.arange(width, dtype=np.uint32)
    for multiplier, shift in ((0x7FEB352D, 16), (0x846CA68B, 15), (0x9E3779B1, 16)):
        h ^= h >> np.uint32(shift)
        h *= np.uint32(multiplier)
    h ^= h >> np.uint32(16)
    h.flags.writeable = False
    return h
