"""Text to token ids and back, as bytes, and a file's metadata, as llama.cpp shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.folder import gguf_weights
from outrider.weights.gguf.header import read_gguf_header


class Vocabulary:
    """The tokenizer of a model under the names of llama-cpp-python."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.size = tokenizer.vocab_size

    @property
    def bos(self) -> int:
        """The token that begins a text; -1 if there is none."""
        return -1 if self.tokenizer.bos_token_id is None else self.tokenizer.bos_token_id

    @property
    def eos(self) -> int:
        """The first of the tokens that end a text; -1 if there is none."""
        return next(iter(self.tokenizer.eos_token_ids), -1)

    @property
    def nl(self) -> int:
        """The token of a line end, or the last of several."""
        return self.tokenize(b"\n", add_bos=False)[-1]

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """UTF-8 as ids. ``special``: the spelling of a special token is that token. Raises UnicodeDecodeError."""
        encode = self.tokenizer.encode if special else self.tokenizer.encode_plain
        return encode(text.decode(), add_special_tokens=add_bos)

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> bytes:
        """The bytes of ids; special tokens only with ``special``. A space behind a leading BOS is left out."""
        hidden = frozenset() if special else self.tokenizer.special_ids
        text = b"".join(self.tokenizer.token_bytes(token) for token in tokens if token not in hidden)
        return text[1:] if len(tokens) and tokens[0] == self.bos and text[:1] == b" " else text

    def text(self, tokens: Sequence[int]) -> str:
        """The text of ids; bytes of characters that are not whole are left out."""
        return self.detokenize(tokens).decode(errors="ignore")


def metadata_of(folder: Path) -> dict[str, str]:
    """The metadata of the GGUF file in a model's folder, arrays left out; empty for other files."""
    file = gguf_weights(folder)
    if file is None:
        return {}
    found = read_gguf_header(file).metadata
    return {key: _shown(value) for key, value in found.items() if not isinstance(value, list | np.ndarray)}


def _shown(value: object) -> str:
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return f"{value:.6f}" if isinstance(value, float | np.floating) else str(value)
