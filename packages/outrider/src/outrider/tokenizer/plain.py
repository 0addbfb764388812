"""Encodes text in which the spelling of a control token is plain text."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken

from outrider.errors import InvalidRequestError


class PlainEncoder:
    """A second tokenizer that knows each control token under a random name only.

    One call encodes a whole conversation, so that words and spaces beside a control token get the same ids as beside
    the real token.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = _with_same_model(backend)
        nonce = secrets.token_hex(8)
        special = {i: token for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self._names = {token.content: f"\ue000{nonce}.{i}\ue001" for i, token in special.items()}
        renamed = [
            AddedToken(
                self._names[token.content],
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                special=False,
            )
            for token in special.values()
        ]
        self._backend.add_tokens(renamed)
        self._backend.encode_special_tokens = True  # as text
        self._ids = {self._backend.token_to_id(self._names[token.content]): i for i, token in special.items()}

    def encode(self, pieces: Sequence[str], *, add_special_tokens: bool = False) -> list[int]:
        """The ids of text, control token, text, ...: only pieces at odd indices become control tokens.

        Raises ``InvalidRequestError`` for text that is not valid Unicode.
        """
        text = "".join(self._names.get(piece, piece) if place % 2 else piece for place, piece in enumerate(pieces))
        try:
            ids = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except (TypeError, UnicodeEncodeError):  # a chat template may write what a tool's arguments spell in JSON
            raise InvalidRequestError("the text is not valid Unicode: remove lone surrogates", param="prompt") from None
        return [self._ids.get(i, i) for i in ids]


def _with_same_model(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer with the parts and the added tokens of ``backend``: a copy of its model would take seconds."""
    copy = tokenizers.Tokenizer(backend.model)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = getattr(backend, name)
        if part is not None:
            setattr(copy, name, part)
    copy.add_tokens([token for _, token in sorted(backend.get_added_tokens_decoder().items())])
    return copy
