"""Where the user's turn begins in a chat template, so that the target can write it (Magpie, Xu et al. 2024).

    <|im_start|>user\\n | What is ... ? | <|im_end|>\\n<|im_start|>assistant\\n
    opening             | written       | ends

Only the template's output is examined. The opening is the longest beginning that the token ids of the
same conversation share for every message of the user, so it never ends inside a token that joins both.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.errors import ConfigError, InvalidRequestError
from outrider.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]

_WORDS = ("a", "The", "42", "(", "é")  # possible first words of a user
_LATER_WORDS = (" a", ", the", "\n", "? 42")  # possible continuations of first words
_PROBE = "Zq7probe7qZ"  # text that occurs in no template
_LONG = 200  # characters of first words above which a turn is not cached
_STOP = 24  # characters of a template's text that mark a turn's end


@dataclass(frozen=True)
class UserTurn:
    """``ids``: tokens to continue. ``written``: their last part, the user's first words."""

    ids: tuple[int, ...]
    written: tuple[int, ...]


class UserTurns:
    """The user's turns of one model's conversations.

    Raises ``ConfigError`` where the model has no chat template, or the template does not render the user's text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._first: dict[tuple[str, ...], UserTurn] = {}  # first turns, which are few
        if tokenizer.chat_template is None:
            raise ConfigError(
                f"{tokenizer.name} has no chat template, so that nothing says where a user speaks: give prompts "
                "with --prompts, or use an instruct model"
            )
        try:
            text = tokenizer.render_chat(_said((), _PROBE))
        except InvalidRequestError as error:
            raise ConfigError(f"{tokenizer.name}: {error}: give prompts with --prompts") from None
        if text.count(_PROBE) != 1:
            raise ConfigError(
                f"the chat template of {tokenizer.name} writes a user's message {text.count(_PROBE)} times: give "
                "prompts with --prompts"
            )
        behind = text.partition(_PROBE)[2]
        words, special = self._until_special(behind)
        self.end_ids = frozenset((*tokenizer.eos_token_ids, *(() if words else special)))
        """Tokens that end a user's turn."""
        self.stop = (words.splitlines()[0][:_STOP].strip(),) if words else ()
        """Strings that end it, where the template marks its end by text."""
        self.takes_system = self._takes_system()

    def open(self, messages: Sequence[Message], start: str = "") -> UserTurn:
        """The user's turn that follows ``messages``; ``start``: its first words."""
        if any(message["role"] != "system" for message in messages) or len(start) > _LONG:
            return self._find(messages, start)
        key = (*(str(message["content"]) for message in messages), start)
        if key not in self._first:
            self._first[key] = self._find(messages, start)
        return self._first[key]

    def _find(self, messages: Sequence[Message], start: str) -> UserTurn:
        bare = self._shared(messages, "", _WORDS)
        if not start:
            return UserTurn(bare, ())
        ids = self._shared(messages, start, _WORDS if start[-1].isspace() else _LATER_WORDS)
        return UserTurn(ids, ids[len(bare) :])

    def _shared(self, messages: Sequence[Message], start: str, words: Sequence[str]) -> tuple[int, ...]:
        found = [self._tokenizer.encode_chat(_said(messages, start + word)) for word in words]
        ids = [first for first, *others in itertools.takewhile(_same, zip(*found, strict=False))]
        while ids and not self._tokenizer.token_text(ids[-1]).strip(" "):
            ids.pop()  # the space before a word belongs to the word's token, in most vocabularies
        return tuple(ids)

    def _until_special(self, text: str) -> tuple[str, tuple[int, ...]]:
        """``text`` up to its first control token, stripped, and the ids of that token, () if there is none."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        end = next((i for i, token in enumerate(ids) if token in self._tokenizer.special_ids), len(ids))
        return self._tokenizer.decode(ids[:end]).strip(), tuple(ids[end : end + 1])

    def _takes_system(self) -> bool:
        try:
            text = self._tokenizer.render_chat([{"role": "system", "content": _PROBE}, *_said((), "a")])
        except InvalidRequestError:
            return False
        return _PROBE in text


def _same(ids: Sequence[int]) -> bool:
    return len(set(ids)) == 1


def _said(messages: Sequence[Message], text: str) -> list[Message]:
    return [*messages, {"role": "user", "content": text}]
