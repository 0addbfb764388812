"""Text to token ids and back, and chat messages to a prompt, from the files of a model folder.

Built on ``tokenizers`` alone: starting up costs no import of transformers. Ids, texts and rendered chats equal
those of transformers on the same folder (tests compare them).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from outrider.errors import InvalidRequestError, ModelFormatError, OutriderError
from outrider.tokenizer.bounds import characters_per_token
from outrider.tokenizer.chat_template import ChatTemplate, Rendered, find_template
from outrider.tokenizer.detokenizer import IncrementalDetokenizer
from outrider.tokenizer.plain import PlainEncoder
from outrider.tokenizer.tokenizer_config import add_declared_tokens, check_parts, special_tokens
from outrider.utils.byte_alphabet import byte_alphabet
from outrider.utils.json_files import merge_ids, read_json_object, shown

__all__ = ["IncrementalDetokenizer", "Tokenizer"]

LONG = 1024  # characters or tokens; for more, the library is called in a way that releases Python's lock

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Tokenizer:
    """One model's vocabulary. Make one with ``Tokenizer.from_folder``; safe to share between threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
        bos_token_id: int | None = None,
        chat_template: str | None = None,
        name: str = "this model",
    ) -> None:
        backend.no_truncation()  # some published files carry limits that belong to the caller
        backend.no_padding()
        self._backend = backend
        self._special_tokens = dict(special_tokens or {})
        self.name = name
        self.eos_token_ids: tuple[int, ...] = tuple(eos_token_ids)
        self.bos_token_id = bos_token_id
        self.chat_template = chat_template
        self._bytes: dict[int, bytes] = {}  # cache of ``token_bytes``
        self.special_ids = frozenset(i for i, t in backend.get_added_tokens_decoder().items() if t.special)

    @classmethod
    def from_folder(cls, path: Path, name: str | None = None) -> Tokenizer:
        """Read ``tokenizer.json`` and, where present, the configurations beside it.

        ``name`` is the model's name in messages; by default its folder's.

        Raises ``ModelFormatError`` if a file is missing or damaged.
        """
        file = path / "tokenizer.json"
        if not file.exists():
            raise ModelFormatError(
                f"{path} has no tokenizer.json: make one with transformers (AutoTokenizer, save_pretrained)"
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001  (the library raises plain Exception for a bad file)
            raise ModelFormatError(f"{file} cannot be read ({shown(str(error))}): download the model again") from None
        config, generation, own = (
            read_json_object(path / name) if (path / name).exists() else {}
            for name in ("config.json", "generation_config.json", "tokenizer_config.json")
        )
        try:
            check_parts(backend)
            add_declared_tokens(backend, own)
        except ModelFormatError as error:
            raise ModelFormatError(f"{path}: {error}") from None
        special = special_tokens(own, path)
        eos, bos = special.get("eos_token"), special.get("bos_token")
        return cls(
            backend,
            special_tokens=special,
            eos_token_ids=merge_ids(
                None if eos is None else backend.token_to_id(eos),
                config.get("eos_token_id"),
                generation.get("eos_token_id"),
            ),
            bos_token_id=None if bos is None else backend.token_to_id(bos),
            chat_template=find_template(path, own.get("chat_template")),
            name=name or path.name,
        )

    def to_json(self) -> str:
        """The contents of a ``tokenizer.json`` that makes the same tokenizer."""
        text: str = self._backend.to_str()
        return text

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        """Every token as the file spells it, added tokens included, to its id."""
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocabulary

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id with a meaning; a model's embedding may be padded beyond it."""
        return max(self.vocabulary.values(), default=-1) + 1

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """``text`` as ids; with ``add_special_tokens``, framed as the model expects (a BOS token, for some)."""
        try:
            if len(text) < LONG:
                ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
            else:
                ids = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except (TypeError, UnicodeEncodeError):
            raise InvalidRequestError("the text is not valid Unicode: remove lone surrogates", param="prompt") from None
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``ids``. Ids without a meaning have no text; incomplete characters become U+FFFD."""
        try:
            if len(ids) < LONG:
                text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
            else:
                (text,) = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError):
            wrong = next((i for i in ids if not (isinstance(i, int) and 0 <= i < self.vocab_size)), None)
            raise InvalidRequestError(
                f"{wrong!r} is no token id: use integers from 0 to {self.vocab_size - 1}", param="token_ids"
            ) from None
        return text

    def _spelling(self, token_id: int) -> str | None:
        """A token as the file spells it; None for an id without a meaning."""
        token: str | None = self._backend.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        return token

    def has_token(self, token_id: int) -> bool:
        """Whether this id has a meaning; a padded embedding has rows beyond those that do."""
        return self._spelling(token_id) is not None

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes this token alone stands for, whole characters or not; empty for an id without a meaning."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._bytes_of(token_id)
        return found

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._spelling(token_id)
        if token is None:
            return b""
        if self.byte_level:
            return bytes(_BYTES[c] for c in token) if all(c in _BYTES for c in token) else token.encode()
        byte = _BYTE_TOKEN.fullmatch(token) if self.byte_fallback else None
        return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()

    def token_text(self, token_id: int) -> str:
        """The text of one token for people to read; U+FFFD where it holds part of a character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def is_byte_token(self, token_id: int) -> bool:
        """Whether this is one byte of a SentencePiece character, as ``<0xE2>``."""
        return self.byte_fallback and bool(_BYTE_TOKEN.fullmatch(self._spelling(token_id) or ""))

    @cached_property
    def byte_level(self) -> bool:
        """Tokens are byte strings (GPT-2, Llama 3, Qwen): decoding joins bytes."""
        return self._decoder_types == {"ByteLevel"}

    @cached_property
    def byte_fallback(self) -> bool:
        """Tokens are text, with ``<0xNN>`` tokens for bytes of other characters (SentencePiece)."""
        return "ByteFallback" in self._decoder_types

    @cached_property
    def _decoder_types(self) -> frozenset[str]:
        decoder = self._backend.decoder
        state = {} if decoder is None else json.loads(decoder.__getstate__())
        return frozenset(step.get("type", "") for step in state.get("decoders", [state]))

    @cached_property
    def template(self) -> ChatTemplate:
        if self.chat_template is None:
            raise InvalidRequestError(
                f"{self.name} is no chat model (it has no chat template): send a plain prompt, or use "
                "an instruct model",
                param="messages",
            )
        controls = [t.content for t in self._backend.get_added_tokens_decoder().values() if t.special and t.content]
        return ChatTemplate(self.chat_template, self._special_tokens, controls)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as the model's template writes it; ``variables`` reach the template by name.

        Raises ``InvalidRequestError`` if there is no template, or it refuses the messages.
        """
        return self.template.render(messages, add_generation_prompt=add_generation_prompt, variables=variables).text

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The rendered conversation as ids, as transformers' ``apply_chat_template`` gives them.

        Only the template's own special tokens frame it: a template that writes BOS does not get a second one. A
        special token that a message spells stays the text it is; to have it read, encode ``render_chat``'s text.
        """
        return self.encode_rendered(
            self.template.render(messages, add_generation_prompt=add_generation_prompt, variables=variables)
        )

    def encode_rendered(self, rendered: Rendered, *, parse_special: bool = False) -> list[int]:
        """A rendered conversation as ids; ``parse_special``: special tokens spelled in messages count too."""
        if rendered.pieces is None or parse_special:
            return self.encode(rendered.text, add_special_tokens=False)
        return self._plain.encode(rendered.pieces)

    def encode_plain(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """As ``encode``, but a special token that the text spells stays the text it is."""
        return self._plain.encode([text], add_special_tokens=add_special_tokens)

    def prepare(self) -> None:
        """Build lazy tables now, so that first requests do not wait."""
        _ = self.characters_per_token, self._plain
        if self.chat_template is not None:
            with contextlib.suppress(OutriderError):  # raised again when the template is used
                _ = self.template

    @cached_property
    def characters_per_token(self) -> int | None:
        """See ``bounds.characters_per_token``."""
        return characters_per_token(self._backend, self.vocabulary)

    @cached_property
    def _plain(self) -> PlainEncoder:
        return PlainEncoder(self._backend)


_BYTES = byte_alphabet()
