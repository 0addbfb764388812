"""Long contexts before a question: a document, or earlier conversations one after the other."""

from __future__ import annotations

import json
import math
import random
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_train.answers.openings import QUESTIONS, Opening
from outrider_train.answers.script import Message, Start

_BLOCK = 128  # conversations of a block; one of them is packed from those of the four blocks before the last one
_BLOCKS = 4
_CHARACTERS = 8  # read from a text per wanted token: more than enough


class Contexts:
    """Makes the long contexts that some conversations begin with."""

    def __init__(self, tokenizer: Tokenizer, size: tuple[int, int], documents: Sequence[Path]) -> None:
        """``size``: the fewest and the most tokens. Raises ``ConfigError`` for an unreadable document."""
        self._tokenizer, self._size = tokenizer, size
        self._documents = [text for path in documents for text in _texts(path)]
        self._earlier: deque[tuple[int, int, list[Message]]] = deque()  # index, tokens, messages

    def needs(self, index: int) -> int:
        """The number of conversations that must be complete before conversation ``index`` can begin."""
        return 0 if self._documents else max(0, (index // _BLOCK - 1) * _BLOCK)

    def keep(self, index: int, line: dict[str, Any]) -> None:
        """Keep a conversation for later contexts. ``line``: of its last answer. Call in order of ``index``."""
        if self._documents or line["kind"] == "context" or "messages" not in line:
            return
        if self._earlier and self._earlier[-1][0] == index:
            self._earlier.pop()
        messages = [message for message in line["messages"] if message["role"] != "system"]
        self._earlier.append((index, len(line["prompt_ids"]) + len(line["answer_ids"]), messages))
        while self._earlier[0][0] < index - (_BLOCKS + 3) * _BLOCK:
            self._earlier.popleft()

    def begin(self, key: str, index: int, chance: random.Random) -> Start | None:
        """A long beginning of a conversation; None while too little text is there."""
        wanted = round(math.exp(chance.uniform(*map(math.log, self._size))))
        if self._documents:
            return self._document(key, wanted, chance)
        end = self.needs(index)
        usable = [each for each in self._earlier if end - _BLOCKS * _BLOCK <= each[0] < end]
        if sum(tokens for _, tokens, _ in usable) < wanted:
            return None
        chance.shuffle(usable)
        messages: list[Message] = []
        for _, tokens, more in usable:
            messages += more
            wanted -= tokens
            if wanted <= 0:
                break
        return Start(key, Opening("context"), tuple(messages))

    def _document(self, key: str, wanted: int, chance: random.Random) -> Start:
        """A user's message that begins with a document; the target writes the question about it."""
        text = chance.choice(self._documents)
        at = chance.randrange(max(1, len(text) - _CHARACTERS * wanted // 2))
        at = text.rfind("\n", 0, at) + 1  # at the beginning of a line
        ids = self._tokenizer.encode_plain(text[at : at + _CHARACTERS * wanted], add_special_tokens=False)
        part = self._tokenizer.decode(ids[:wanted], skip_special_tokens=False).rstrip("\ufffd").strip()
        return Start(key, Opening("context", None, f"{part}\n\n{chance.choice(QUESTIONS)}"))


def _texts(path: Path) -> list[str]:
    """The document in a text file, or the ``text`` of each line of a JSONL file."""
    try:
        whole = path.read_text(encoding="utf-8")
        texts = [whole]
        if path.suffix == ".jsonl":
            texts = [json.loads(line)["text"] for line in whole.splitlines() if line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"documents={path} cannot be read ({error}): give UTF-8 text, or JSONL with text") from None
    texts = [text for text in texts if isinstance(text, str) and text.strip()]
    if not texts:
        raise ConfigError(f"documents={path} has no text: give UTF-8 text, or JSONL with text")
    return texts
