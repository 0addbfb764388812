"""Counter-based random numbers (Salmon et al. 2011, "Random123").

Every number is a pure function of (seed, purpose, position, node, token id). No generator has a state, so results do
not depend on the order of calls, on other requests, or on drafts.

A token is drawn by the Gumbel-max trick: ``argmax(log w + g)`` with independent standard Gumbel ``g`` is token ``i``
with probability ``w_i / sum(w)``. Using the same ``g`` for two distributions couples their draws.
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
_GROUP = 64  # scores per group in ``largest``, which first finds each group's maximum
_KEPT_ROWS = 16  # rows of noise that a request caches between drafting, verification and the next step
_COARSE = np.uint32(1 << 24)  # hashes below this have fewer significant bits than a float32

# 2**-32, less one part in 2**24 so that the largest hash, which float32 rounds to 2**32, stays below 1. Exact.
_UNIT = np.float32((1 - 2.0**-24) * 2.0**-32)


class Purpose(Enum):
    """The purpose of a random number. Streams of different purposes are independent."""

    MATCH = b"outrider-match"  # one row per absolute position, shared by draft and target: matching only
    DRAFT = b"outrider-draft"  # a drafter's draw, for verifiers that need it independent of the target's draws
    ACCEPT = b"outrider-accept"  # the accept test
    RECOVER = b"outrider-recover"  # the recovered or bonus token
    ORDER = b"outrider-order"  # the order in which siblings are tested


class Noise:
    """The random numbers of one request.

    ``gumbel`` returns ``g = -log(E)``, ``E = -log1p(-v)``, with ``v`` in (0, 1) from a 32-bit hash, or from 64 bits if
    that hash is small. So ``v`` has the full 24 bits of a float32 down to 2**-40 and is never 0 or 1: ``g`` is finite,
    between -2.82 and 45.1. A small ``v`` gives a large ``g``, which wins.

    The error of a draw, given ideal hash bits and log-weights whose largest is 0:

    * Rounding moves ``v`` by at most ``2**-22 v + 2**-65``. Let ``b_i``, a function of the other tokens' noise,
      be the value below which ``v_i`` makes token ``i`` win. Rounding ``v_i`` changes the outcome only if it
      carries ``v_i`` across ``b_i``: probability at most ``E[2 (2**-22 b_i + 2**-65)]``. As ``E[b_i]`` is the
      probability that ``i`` wins, the sum over tokens is ``2**-21 + vocab * 2**-64``, whatever the distribution.
    * Logarithms and the final sum move the best scores, which are below 32, by less than ``2**-17`` each: the
      library's two logarithms are off by at most ``2**-22`` and a unit in the last place together, NumPy's by 4 units
      each. The two best of a Gumbel race are closer than ``t`` with probability at most ``t``
      (``docs/algorithms/noise.md``), so this adds at most ``2**-16``.

    Total variation distance: below 2e-5, a bound that counts all roundings in one direction.
    """

    def __init__(self, seed: int) -> None:
        """``seed``: any integer, of any size; different seeds have different streams."""
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
        """The entries of ``gumbel(position, ...)`` for the token ids ``tokens``: float32 [len(tokens)]."""
        keys, sampler = self.row_keys(position), native.sampler()
        if sampler is not None:
            return sampler.gumbel_of_tokens(keys, tokens)
        return numpy_gumbel(keys, int(tokens.max(initial=0)) + 1)[tokens]

    def uniform(self, position: int, purpose: Purpose, node: int = 0) -> float:
        """A number in [0, 1) with 53 random bits, independent of ``gumbel`` with the same arguments."""
        return (int.from_bytes(self._digest(position, purpose, node)[24:], "little") >> 11) * 2.0**-53

    def generator(self, position: int, purpose: Purpose, node: int = 0) -> np.random.Generator:
        """A NumPy generator for values that are not tokens, with a stream of its own for each set of arguments."""
        key = np.frombuffer(self._digest(position, purpose, node)[:16], dtype="<u8")
        return np.random.Generator(np.random.Philox(key=key))

    def draw(self, log_weights: Array, position: int, purpose: Purpose = Purpose.MATCH, node: int = 0) -> int:
        """Draw a token with probability proportional to ``exp(log_weights)``.

        Args:
            log_weights: [vocab], converted to float32, normalised or not; -inf is an impossible token.

        Raises:
            NumericalError: a weight is NaN or +inf, or all are -inf.
        """
        weights, sampler = host(log_weights), native.sampler()
        if sampler is not None:
            token, score = sampler.draw(weights, self.row_keys(position, purpose, node))
        else:
            row = self.gumbel(position, len(weights), purpose, node)
            scores = weights + row
            token = int(scores.argmax())
            score = float(scores[token])
        if not math.isfinite(score):  # NaN counts as the largest, so the winner's score checks every entry
            raise NumericalError(
                f"cannot draw the token at position {position}: the best score is {score}; "
                "weights must not be NaN or +inf, and at least one must be possible"
            )
        return token

    def draw_from_logits(self, logits: NDArray[np.float32], params: SamplingParams, position: int) -> int:
        """``draw`` from ``shaping.log_weights(logits, params)``, which the native library does not store.

        Args:
            logits: float32 [vocab], after all logits processors.
            params: not greedy.

        Raises:
            NumericalError: the largest logit is NaN, or infinite.
        """
        sampler = native.sampler()
        if sampler is None:
            return self.draw(shaping.log_weights(logits, params), position)
        token, largest = sampler.sample(logits, params, self.row_keys(position))
        shaping.check_largest(largest, params)
        return token

    def draw_without_replacement(
        self, log_weights: Array, count: int, position: int, purpose: Purpose = Purpose.MATCH, node: int = 0
    ) -> list[int]:
        """Draw up to ``count`` tokens without replacement, in the order drawn; the first equals that of ``draw``.

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

    def row_keys(self, position: int, purpose: Purpose = Purpose.MATCH, node: int = 0) -> bytes:
        """Six little-endian words of 32 bits, the keys of a row's hashes."""
        return self._digest(position, purpose, node)[:24]

    def _row(self, position: int, vocab_size: int, purpose: Purpose, node: int) -> Floats:
        keys = self.row_keys(position, purpose, node)
        sampler = native.sampler()
        return sampler.gumbel(keys, vocab_size) if sampler else numpy_gumbel(keys, vocab_size)


def largest(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The indices of the ``count`` largest scores above -inf, in descending order; ties go to the lower index."""
    bound = -np.inf
    maxima = scores[: len(scores) // _GROUP * _GROUP].reshape(_GROUP, -1).max(axis=0, initial=-np.inf)
    if 0 < count <= len(maxima):
        bound = np.partition(maxima, -count)[-count]  # at least ``count`` scores reach this bound, and rarely many more
    candidates = np.flatnonzero((scores >= bound) & (scores > -np.inf))
    return candidates[np.argsort(-scores[candidates], kind="stable")][:count]


def numpy_gumbel(keys: bytes, vocab_size: int) -> NDArray[np.float32]:
    """One row of Gumbel noise, evaluated alone, in one thread and at a padded width: float32 [vocab_size].

    Vectorised logarithms may differ in the last bit from the scalar code for a remainder, if the width is no multiple
    of the vector width or of a thread's share. A padded row has no remainder, so an entry's bits depend on its key
    alone.
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
    """A seed for a request without one: 63 random bits, which fit a client's signed 64-bit integer."""
    return secrets.randbits(63)


def _mix(table: Words, k0: np.uint32, k1: np.uint32, k2: np.uint32) -> Words:
    """Hash each entry under three keys: uint32 [n] -> uint32 [n], two multiply-xorshift rounds ("lowbias32").

    Keys enter before, between and after the rounds. With a single key, the rows of two keys would be permutations of
    each other, and rows of different positions would not be independent.
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
    """A mixed word per token id: uint32 [width], shared by all rows."""
    h = np.arange(width, dtype=np.uint32)
    for multiplier, shift in ((0x7FEB352D, 16), (0x846CA68B, 15), (0x9E3779B1, 16)):
        h ^= h >> np.uint32(shift)
        h *= np.uint32(multiplier)
    h ^= h >> np.uint32(16)
    h.flags.writeable = False
    return h
