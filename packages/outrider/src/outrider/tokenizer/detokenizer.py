"""Converts token ids to text one at a time, and never returns half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

_CHARACTER = 4  # bytes, at most


class Vocabulary(Protocol):
    """The methods of a tokenizer that convert ids to text."""

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def byte_level(self) -> bool: ...

    def has_token(self, token_id: int) -> bool: ...

    def is_byte_token(self, token_id: int) -> bool: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


class IncrementalDetokenizer:
    """Turns ids into text piece by piece; the pieces join to ``decode`` of all ids, after the prompt's.

    A character is held back until it is whole; ``flush`` ends the text. The cost of a token does not grow with the
    text before it. Two ways, by how the vocabulary writes bytes::

        byte-level      each token is a byte string      -> one incremental UTF-8 decoder
        everything else tokens are words, and a run of   -> a run is decoded once, when a word follows it, together
                        <0xNN> tokens is one text           with the word before it (its spacing depends on that)

    A run waits for its end because one bad byte turns all of it into U+FFFD. ``tokenizers.decoders.DecodeStream``
    is not used: it has no ``flush``, so an output that ends inside a character would lose its last text.

    Args:
        prompt_tail_ids: the last ids before the output (all of the prompt, or the last dozen).
    """

    def __init__(
        self, tokenizer: Vocabulary, prompt_tail_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self.shown: frozenset[int] = frozenset()
        """Special tokens that ``show`` was given."""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._before: list[int] = []  # the last decided word: context of the next one
        self._run: list[int] = []  # byte tokens whose text is not decided yet
        self._given = ""
        self.push(self._tail(prompt_tail_ids))
        if self._run:  # the prompt ends inside a run: its whole characters are not the output's
            self._given = self._text_after(self._run).rstrip("\ufffd")

    def show(self, ids: Iterable[int]) -> None:
        """From now on show these special tokens, if the others are skipped."""
        self.shown |= frozenset(ids)
        self._skip -= self.shown

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids; return the text that is now certain."""
        kept = [i for i in ids if i not in self._skip]
        if self._tokenizer.byte_level:
            return self._utf8.decode(b"".join(map(self._tokenizer.token_bytes, kept)))
        return "".join(self._push_one(i) for i in kept if self._tokenizer.has_token(i))

    def _tail(self, ids: Sequence[int]) -> Sequence[int]:
        """The last ids of a prompt, from which alone the text behind it follows: a character, or a word and its run."""
        vocabulary, size = self._tokenizer, 0
        for at in range(len(ids) - 1, -1, -1):
            if ids[at] in self._skip:
                continue
            size += len(vocabulary.token_bytes(ids[at])) if vocabulary.byte_level else 0
            is_word = not vocabulary.byte_level and vocabulary.has_token(ids[at])
            if size >= _CHARACTER or (is_word and not vocabulary.is_byte_token(ids[at])):
                return ids[at:]
        return ids

    def flush(self) -> str:
        """End the text: return the held-back part, incomplete characters as U+FFFD."""
        return self._utf8.decode(b"", final=True) + self._end_run()

    def _push_one(self, token_id: int) -> str:
        if self._tokenizer.is_byte_token(token_id):
            self._run.append(token_id)
            return ""
        text = self._end_run() + self._text_after([token_id])
        self._before = [token_id]
        return text

    def _end_run(self) -> str:
        if not self._run:
            return ""
        text = self._text_after(self._run)[len(self._given) :]
        self._before, self._run, self._given = self._run, [], ""
        return text

    def _text_after(self, ids: list[int]) -> str:
        """The text that ``ids`` add to the ids before them, with the leading space that SentencePiece drops."""
        decode = self._tokenizer.decode
        shown = decode(self._before, skip_special_tokens=False)
        return decode([*self._before, *ids], skip_special_tokens=False)[len(shown) :]
