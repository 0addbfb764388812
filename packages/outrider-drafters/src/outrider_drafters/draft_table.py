"""Unigram and bigram counts of a text, in a small safetensors file: trained once, shared by engines.

    unigram         int64 [vocab]        count of each token
    bigram_starts   int64 [vocab + 1]    followers of token t are entries starts[t] to starts[t + 1] - 1
    bigram_tokens   int64 [entries]      the followers of each token, the most frequent first
    bigram_counts   int64 [entries]

Metadata, as strings: ``format``, ``vocab_size``, ``tokens`` (of the text).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from outrider.errors import ConfigError, ModelFormatError
from outrider.utils.json_files import shown
from outrider.utils.whole_files import write_whole
from outrider.weights.files.safetensors import read_header

FORMAT = "outrider-draft-table-1"
KEEP = 32  # stored followers of a token: rarer ones are hardly ever drafted
_MOST_SEEN = 2**62  # bound on the sum of each token's largest count: sums then fit 64 bits
Numbers = NDArray[np.int64]
_NAMES = ("unigram", "bigram_starts", "bigram_tokens", "bigram_counts")


class TableUnigrams:
    """Fixed counts of single tokens."""

    def __init__(self, counts: Numbers) -> None:
        """``counts``: int64 [vocab], not all zero."""
        known = np.flatnonzero(counts)
        self._counts = dict(zip(known.tolist(), counts[known].tolist(), strict=True))
        best = int(counts.argmax())
        self._best = best, int(counts[best]) / int(counts.sum())

    def update(self, tokens: Sequence[int]) -> None:
        """Fixed."""

    def followers(self, context: Sequence[int]) -> dict[int, int]:
        return self._counts

    def best(self, context: Sequence[int]) -> tuple[int, float]:
        return self._best


class TableBigrams:
    """Fixed counts of followers."""

    def __init__(self, starts: Numbers, tokens: Numbers, counts: Numbers) -> None:
        self._starts: list[int] = starts.tolist()
        self._tokens, self._counts = tokens, counts

    def update(self, tokens: Sequence[int]) -> None:
        """Fixed."""

    def followers(self, context: Sequence[int]) -> dict[int, int] | None:
        span = self._span(context)
        return dict(zip(self._tokens[span].tolist(), self._counts[span].tolist(), strict=True)) or None

    def best(self, context: Sequence[int]) -> tuple[int, float] | None:
        span = self._span(context)
        if span.start == span.stop:
            return None
        return int(self._tokens[span.start]), int(self._counts[span.start]) / int(self._counts[span].sum())

    def _span(self, context: Sequence[int]) -> slice:
        token = context[-1]
        return slice(self._starts[token], self._starts[token + 1])


@dataclass(frozen=True, eq=False)
class DraftTable:
    """A trained table. ``load`` validates the whole file."""

    unigram: Numbers
    bigram_starts: Numbers
    bigram_tokens: Numbers
    bigram_counts: Numbers
    trained_on: int  # tokens

    @property
    def vocab_size(self) -> int:
        return len(self.unigram)

    @property
    def unigrams(self) -> TableUnigrams:
        return TableUnigrams(self.unigram)

    @property
    def bigrams(self) -> TableBigrams:
        return TableBigrams(self.bigram_starts, self.bigram_tokens, self.bigram_counts)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises ConfigError if the table was made for another vocabulary."""
        if self.vocab_size != vocab_size:
            raise ConfigError(
                f"the draft table counts {self.vocab_size} tokens, but the model has {vocab_size}: train it with "
                "`outrider train table --model` and this model"
            )

    def save(self, path: Path) -> None:
        """Write the table to ``path``. Errors as for ``utils.whole_files.write_whole``."""
        tensors = {name: getattr(self, name) for name in _NAMES}
        metadata = {"format": FORMAT, "vocab_size": str(self.vocab_size), "tokens": str(self.trained_on)}
        write_whole(path, lambda fresh: save_file(tensors, fresh, metadata))

    @classmethod
    def load(cls, path: Path) -> DraftTable:
        """Read a file that ``save`` wrote.

        Raises:
            ConfigError: the file is missing.
            ModelFormatError: the file is damaged, or no draft table.
        """
        if not path.is_file():
            raise ConfigError(f"draft_table={str(path)!r} is not a file: make one with `outrider train table`")
        infos = read_header(path)
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT or set(infos) != set(_NAMES):
                    raise _wrong(path, f"it is not a draft table of format {FORMAT}")
                tensors = {name: np.array(file.get_tensor(name)) for name in _NAMES}  # a copy: the mapping may change
        except SafetensorError as error:
            raise _wrong(path, shown(str(error))) from None
        if any(t.dtype != np.int64 or t.ndim != 1 for t in tensors.values()):
            raise _wrong(path, "its counts are not int64 vectors")
        table = cls(**tensors, trained_on=_number(metadata.get("tokens", "")))
        table._check(path)
        return table

    def _check(self, path: Path) -> None:
        starts, vocab = self.bigram_starts, self.vocab_size
        if len(starts) != vocab + 1 or len(self.bigram_tokens) != len(self.bigram_counts):
            raise _wrong(path, "its tensors do not fit together")
        if int(starts[0]) != 0 or int(starts[-1]) != len(self.bigram_tokens) or bool((np.diff(starts) < 0).any()):
            raise _wrong(path, "bigram_starts does not divide the followers")
        if bool(((self.bigram_tokens < 0) | (self.bigram_tokens >= vocab)).any()):
            raise _wrong(path, f"it names tokens outside its vocabulary of {vocab}")
        if vocab == 0 or int(self.unigram.min()) < 0 or int(self.unigram.max()) == 0:
            raise _wrong(path, "its unigram counts are negative, or all zero")
        if bool((self.bigram_counts < 1).any()):
            raise _wrong(path, "it has followers that were never seen")
        for counts in (self.unigram, self.bigram_counts):
            if len(counts) and int(counts.max()) > _MOST_SEEN // len(counts):
                raise _wrong(path, "it has counts whose sum is too large to be one")


def count(tokens: Sequence[int], vocab_size: int, keep: int = KEEP) -> DraftTable:
    """Count a text. Raises ConfigError if the text is empty or has tokens outside the vocabulary."""
    if not tokens:
        raise ConfigError("there is no text to count: give at least one token")
    if not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise ConfigError(f"the text has tokens outside the vocabulary of {vocab_size}: is this the right model?")
    singles = np.bincount(np.array(tokens), minlength=vocab_size).astype(np.int64)
    after: dict[int, Counter[int]] = {}
    for token, follower in pairwise(tokens):
        after.setdefault(token, Counter())[follower] += 1
    starts, followers, counts = [0], list[int](), list[int]()
    for token in range(vocab_size):
        best = after[token].most_common(keep) if token in after else []
        followers += (follower for follower, _ in best)
        counts += (n for _, n in best)
        starts.append(len(followers))
    return DraftTable(singles, _int64(starts), _int64(followers), _int64(counts), trained_on=len(tokens))


def _int64(values: Sequence[int]) -> Numbers:
    return np.array(values, np.int64)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


def _wrong(path: Path, why: str) -> ModelFormatError:
    return ModelFormatError(f"{path} cannot be used: {why}; make it again with `outrider train table`")
