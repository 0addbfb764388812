"""A fixed store of a model's earlier answers that drafts are copied from, indexed by a suffix array.

Retrieval in place of training, after REST (He et al. 2024); docs/algorithms/suffix.md.

    tokens   int32 [n]   each prompt's end and its answer, with gaps of -1 between texts
    order    int32 [m]   indices of the answers' tokens, sorted by the tokens before them

Metadata, as strings: ``format``, ``vocab_size``, ``target`` (its fingerprint's digest), ``texts``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from outrider.errors import ConfigError, ModelFormatError
from outrider.native.library import library
from outrider.native.signatures import quick
from outrider.utils.json_files import shown
from outrider.utils.whole_files import write_whole
from outrider.weights.files.safetensors import read_header

MAX_MATCH = 16  # longer matches predict no better


class Occurrence(NamedTuple):
    """The ``match`` tokens before ``tokens[end]`` equal the last tokens searched for; the text continues from there."""

    text: int
    tokens: Sequence[int]
    end: int
    match: int


FORMAT = "outrider-datastore-1"
_SORTED = 12  # preceding tokens that form a place's sort key
_MOST = 64  # places found at once: MOST of suffix_array_search.c
_LEAD = 8  # last tokens of a prompt that are kept before its answer
_NONE = -1  # marks the gap between two texts
_NAMES = ("tokens", "order")


@dataclass(frozen=True)
class Origin:
    """The origin of a datastore."""

    vocab_size: int
    target: str = ""  # fingerprint digest of the model that wrote the answers
    texts: int = 0


class Datastore:
    """A text and its places, sorted by their preceding tokens read backwards: a suffix array of the reversed text.

    ::

        tokens   -1 -1 ... the end of a prompt | an answer ... -1 -1 ... the end of the next prompt | ...
        order    indices of the answers' tokens; neighbours share the longest context
    """

    def __init__(self, tokens: NDArray[np.int32], order: NDArray[np.int32], origin: Origin) -> None:
        self._tokens, self._order, self.origin = tokens, order, origin
        self._text, self._places = tokens.data, order.data  # memoryviews, whose items are Python integers
        self._back = -np.arange(1, MAX_MATCH + 1)
        self.addresses = len(order), order.ctypes.data, len(tokens), tokens.ctypes.data
        """Numbers and addresses of ``order`` and ``tokens``, for the native library."""
        self._library = library()

    def __len__(self) -> int:
        """The number of tokens that may be drafted."""
        return len(self._order)

    def find(self, tail: Sequence[int], limit: int) -> list[Occurrence]:
        """Up to ``limit`` places (64 at most) whose context matches the longest end of ``tail``, longest first."""
        limit, tail = min(limit, _MOST), tail[-MAX_MATCH:]
        if self._library is not None:  # right after a forward pass, NumPy takes ten times as long
            end, out = array("i", tail), array("i", bytes(8 * limit))
            at, _ = out.buffer_info()
            count = quick(self._library, "outrider_suffix_array_search")(
                *self.addresses, len(tail), end.buffer_info()[0], limit, at, at + 4 * limit
            )
            return [Occurrence(0, self._text, out[i], out[limit + i]) for i in range(count)]
        wanted = list(tail)[::-1]
        at = bisect_left(self._places, wanted[:_SORTED], key=self._before)
        near = self._order[max(0, at - limit) : at + limit]
        same = self._tokens[near[:, None] + self._back[: len(wanted)]] == np.array(wanted, np.int32)
        match = np.logical_and.accumulate(same, axis=1).sum(axis=1)
        best = np.argsort(-match, kind="stable")[:limit]
        found = zip(near[best].tolist(), match[best].tolist(), strict=True)
        return [Occurrence(0, self._text, place, length) for place, length in found if length]

    def _before(self, place: int) -> list[int]:
        return self._text[place - _SORTED : place].tolist()[::-1]

    def save(self, path: Path) -> None:
        """Write the datastore to ``path``. Errors as for ``utils.whole_files.write_whole``."""
        tensors = {"tokens": self._tokens, "order": self._order}
        numbers = {"vocab_size": str(self.origin.vocab_size), "texts": str(self.origin.texts)}
        metadata = {"format": FORMAT, "target": self.origin.target} | numbers
        write_whole(path, lambda fresh: save_file(tensors, fresh, metadata))

    @classmethod
    def load(cls, path: Path) -> Datastore:
        """Read a file that ``save`` wrote.

        Raises:
            ConfigError: the file does not exist.
            ModelFormatError: the file is damaged, or is no datastore.
        """
        origin = read_origin(path)
        try:
            with safe_open(path, framework="numpy") as file:
                # Copies: the file is memory-mapped, and may change or shrink after the check.
                tokens, order = (np.array(file.get_tensor(name)) for name in _NAMES)
        except SafetensorError as error:
            raise _wrong(path, shown(str(error))) from None
        if any(t.dtype != np.int32 or t.ndim != 1 for t in (tokens, order)):
            raise _wrong(path, "its tensors are not int32 vectors")
        store = cls(tokens, order, origin)
        store._check(path)
        return store

    def _check(self, path: Path) -> None:
        tokens, order = self._tokens, self._order
        if len(order) == 0 or order.min() < MAX_MATCH or order.max() >= len(tokens):
            raise _wrong(path, "it has no places, or places outside its text")
        if tokens.min() < _NONE or tokens.max() >= self.origin.vocab_size:
            raise _wrong(path, f"it has tokens outside its vocabulary of {self.origin.vocab_size}")
        if (tokens[order] == _NONE).any():
            raise _wrong(path, "some of its places have no token")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises ConfigError if the datastore was made for another vocabulary."""
        if self.origin.vocab_size != vocab_size:
            raise ConfigError(
                f"the datastore has a vocabulary of {self.origin.vocab_size} tokens, but the model one of "
                f"{vocab_size}: make it with `outrider train datastore --model` and this model"
            )


def collect(texts: Iterable[tuple[Sequence[int], Sequence[int]]], vocab_size: int, target: str = "") -> Datastore:
    """A datastore of (prompt, answer) pairs of token ids. Only tokens of answers are drafted.

    Raises ConfigError if there are no answers, or for a token outside the vocabulary.
    """
    parts, places, length = [_gap()], list[NDArray[np.int64]](), MAX_MATCH
    for prompt, answer in texts:
        lead = list(prompt)[-_LEAD:]
        parts += [np.array([*lead, *answer], np.int64), _gap()]
        places.append(np.arange(length + len(lead), length + len(lead) + len(answer)))
        length += len(lead) + len(answer) + MAX_MATCH
    tokens = np.concatenate(parts)
    at = np.concatenate(places) if places else np.empty(0, np.int64)
    if len(at) == 0:
        raise ConfigError("there are no answers to copy from: give at least one")
    if tokens.min() < _NONE or tokens.max() >= vocab_size:
        raise ConfigError(f"the answers have tokens outside the vocabulary of {vocab_size}: is this the right model?")
    before = [(tokens[at - i] + 1).astype(np.uint64) for i in range(1, _SORTED + 1)]
    pairs = [near << np.uint64(32) | far for near, far in zip(before[::2], before[1::2], strict=True)]
    order = at[np.lexsort(pairs[::-1])]
    return Datastore(tokens.astype(np.int32), order.astype(np.int32), Origin(vocab_size, target, len(places)))


def read_origin(path: Path) -> Origin:
    """The origin in a file's metadata; reads no tensors. Raises as ``Datastore.load``."""
    if not path.is_file():
        raise ConfigError(f"datastore={str(path)!r} is not a file: make one with `outrider train datastore`")
    infos = read_header(path)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise _wrong(path, shown(str(error))) from None
    if metadata.get("format") != FORMAT or set(infos) != set(_NAMES):
        raise _wrong(path, f"it is not a datastore of format {FORMAT}")
    numbers = [metadata.get(name, "") for name in ("vocab_size", "texts")]
    if not all(number.isascii() and number.isdecimal() and len(number) < 10 for number in numbers):
        raise _wrong(path, "its metadata are damaged")
    return Origin(int(numbers[0]), metadata.get("target", ""), int(numbers[1]))


def _gap() -> NDArray[np.int64]:
    return np.full(MAX_MATCH, _NONE, np.int64)


def _wrong(path: Path, why: str) -> ModelFormatError:
    return ModelFormatError(f"{path} cannot be used: {why}; make it again with `outrider train datastore`")
