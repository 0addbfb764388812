"""Filters: loops, prompts seen before, and prompts that contain a question of a benchmark."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outrider.errors import ConfigError

_LOOP_GRAM, _LOOP_SHARE, _LOOP_LEAST = 8, 0.3, 24

_GRAM = 5  # characters of a shingle
_BANDS, _ROWS = 8, 4  # 32 hashes: texts that share half of their shingles are compared with probability 0.4
_ALIKE = 0.7  # least share of equal hashes of near duplicates: an estimate of Jaccard's index
_LONG = 2000  # characters
_PRIME = (1 << 31) - 1

_OVERLAP = 13  # words in a row
_WORD = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]|[^\W\u2e80-\u9fff\uac00-\ud7af]+")
"""A word, or a character of a script without spaces between words."""


def loops(ids: Sequence[int]) -> bool:
    """Whether more than 30% of the 8-grams of ``ids`` repeat earlier ones; False below 24 tokens."""
    if len(ids) < _LOOP_LEAST:
        return False
    grams = [tuple(ids[i : i + _LOOP_GRAM]) for i in range(len(ids) - _LOOP_GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) > _LOOP_SHARE


class LoopWatch:
    """Tells early that ``loops`` will be true of an unfinished text, however it continues.

    This holds once the repeated 8-grams exceed 30% of those in the longest possible text.
    """

    def __init__(self, most: int, before: Sequence[int] = ()) -> None:
        """``most``: tokens of the longest possible text. ``before``: its first tokens."""
        self._grams = max(1, most - _LOOP_GRAM + 1)
        self._ids = list(before)
        self._before, self._read = len(before), 0
        self._seen: set[tuple[int, ...]] = set()

    def __call__(self, output: Sequence[int]) -> bool:
        """``output``: the tokens after ``before`` so far."""
        self._ids += output[len(self._ids) - self._before :]
        for i in range(self._read, len(self._ids) - _LOOP_GRAM + 1):
            self._seen.add(tuple(self._ids[i : i + _LOOP_GRAM]))
            self._read = i + 1
        repeated = self._read - len(self._seen)
        return len(self._ids) >= _LOOP_LEAST and 1 - (self._grams - repeated) / self._grams > _LOOP_SHARE


class Duplicates:
    """Kept prompts, by content and by MinHash (Broder 1997) of their 5-grams of characters.

    32 hashes in 8 bands of 4: a text is compared with the texts that share a band, and is a near duplicate of a text
    that has 70% of its hashes. Long texts, which may ask different questions about one document, are compared by
    content alone. About 500 bytes per prompt.
    """

    def __init__(self) -> None:
        draw = np.random.Generator(np.random.PCG64(20))
        self._a, self._b = (draw.integers(1, _PRIME, (_BANDS * _ROWS, 1)) for _ in range(2))
        self._exact: set[str] = set()
        self._bands: dict[bytes, int] = {}
        self._signatures: list[Any] = []  # uint32 [32] each

    def find(self, text: str) -> str | None:
        """``duplicate``, ``near duplicate`` or None."""
        plain = _plain(text)
        if plain in self._exact:
            return "duplicate"
        if len(text) > _LONG:
            return None
        signature = self._signature(plain)
        others = {self._bands[band] for band in _bands(signature) if band in self._bands}
        if any((self._signatures[i] == signature).mean() >= _ALIKE for i in others):
            return "near duplicate"
        return None

    def add(self, text: str) -> None:
        """Add a kept prompt; of texts that share a band, only the first is compared."""
        plain = _plain(text)
        self._exact.add(plain)
        if len(text) > _LONG:
            return
        signature = self._signature(plain)
        for band in _bands(signature):
            self._bands.setdefault(band, len(self._signatures))
        self._signatures.append(signature)

    def _signature(self, plain: str) -> Any:
        grams = {plain[i : i + _GRAM] for i in range(max(1, len(plain) - _GRAM + 1))}
        hashes = np.array([zlib.crc32(gram.encode()) % _PRIME for gram in grams], dtype=np.int64)
        return ((self._a * hashes + self._b) % _PRIME).min(axis=1).astype(np.uint32)


class Excluded:
    """Questions that no prompt may contain: no 13-gram of their words, and no shorter question as a whole."""

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        """Raises ``ConfigError`` for a file that is unreadable or has no question."""
        self._grams: dict[int, set[tuple[str, ...]]] = {}  # by length
        for path in paths:
            texts = list(questions(path))
            if not texts:
                raise ConfigError(f"exclude={path} has no question: give lines with prompt, turns or messages")
            for text in texts:
                words = _words(text)
                for gram in _grams(words, min(_OVERLAP, len(words))):
                    self._grams.setdefault(len(gram), set()).add(gram)

    def contains(self, text: str) -> bool:
        """Whether ``text`` contains a question. A question below 4 words must be the whole text."""
        words = _words(text)
        return any(
            (length >= 4 or length == len(words)) and not known.isdisjoint(_grams(words, length))
            for length, known in self._grams.items()
        )


def questions(path: Path) -> Iterator[str]:
    """The users' messages in the JSONL file ``path``, or the paragraphs of a text file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"exclude={path} cannot be read ({error}): give a file of questions") from None
    if path.suffix not in (".json", ".jsonl"):
        yield from (part for part in text.split("\n\n") if part.strip())
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number} is not JSON ({error}): correct or remove it") from None
        yield from (said for said in _said(row) if said.strip())


def _said(row: Any) -> Iterator[str]:
    if not isinstance(row, Mapping):
        return
    for key in ("prompt", "question"):
        if isinstance(row.get(key), str):
            yield row[key]
    turns = row.get("turns")
    yield from (turn for turn in (turns if isinstance(turns, list) else []) if isinstance(turn, str))
    for key, role, content in (("messages", "role", "content"), ("conversations", "from", "value")):
        for message in row[key] if isinstance(row.get(key), list) else []:
            if isinstance(message, Mapping) and message.get(role) in ("user", "human"):
                yield str(message.get(content, ""))


def _plain(text: str) -> str:
    return " ".join(_words(text)) or text.strip()


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _grams(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)} if length else set()


def _bands(signature: Any) -> list[bytes]:
    return [bytes([i]) + signature[i * _ROWS : (i + 1) * _ROWS].tobytes() for i in range(_BANDS)]
