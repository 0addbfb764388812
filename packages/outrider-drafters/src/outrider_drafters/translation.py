"""Translation of a text between the tokens of two vocabularies."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.tokenizer.detokenizer import IncrementalDetokenizer
from outrider.tokenizer.tokenizer import Tokenizer

_WINDOW = 256  # last characters, encoded again each time, as further text may change their tokens
_TAIL = 8  # the target's tokens before a draft that are encoded with its first word


class Translation:
    """Translates a growing text from the target's tokens to the draft model's, and drafts back."""

    def __init__(self, target: Tokenizer, own: Tokenizer) -> None:
        """``target``, ``own``: the target's and the draft model's tokenizers."""
        self._target, self._own = target, own
        self._text = IncrementalDetokenizer(target)
        self._read = 0  # tokens of the target
        self._settled = list(own.encode(""))  # the first tokens of every text of the draft model
        self._open = ""  # characters after the settled ones

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The draft model's tokens for the target's ``tokens``, which extend those of the last call."""
        self._open += self._text.push(tokens[self._read :])
        self._read = len(tokens)
        if len(self._open) > 2 * _WINDOW:
            cut = self._open.rfind(" ", 1, len(self._open) - _WINDOW)
            if cut > 0:
                self._settled += self._own.encode_plain(self._open[:cut], add_special_tokens=False)
                self._open = self._open[cut:]
        return self._settled + self._own.encode_plain(self._open, add_special_tokens=False)

    def write(self, tokens: Sequence[int], text: Sequence[int], drafted: Sequence[int], *, ended: bool) -> list[int]:
        """The target's tokens after ``tokens`` for the draft model's ``drafted`` after ``text``.

        Args:
            ended: the draft ends the text; otherwise the last token, perhaps half a word, is left out.
        """
        pieces = IncrementalDetokenizer(self._own, text[-2 * _TAIL :])
        added = pieces.push(drafted) + (pieces.flush() if ended else "")
        found = self._behind(tokens, added) if added else []
        if ended:
            return found + list(self._target.eos_token_ids[:1])
        return found[:-1]

    def _behind(self, tokens: Sequence[int], added: str) -> list[int]:
        """The tokens of ``added``, encoded together with the last ``tokens`` if these stay the same, else alone."""
        tail = list(tokens[-_TAIL:])
        special = [i for i, token in enumerate(tail) if token in self._target.special_ids]
        tail = tail[special[-1] + 1 :] if special else tail
        before = self._target.decode(tail, skip_special_tokens=False)
        whole = self._target.encode_plain(before + added, add_special_tokens=False)
        if whole[: len(tail)] == tail:
            return whole[len(tail) :]
        return self._target.encode_plain(added, add_special_tokens=False)
