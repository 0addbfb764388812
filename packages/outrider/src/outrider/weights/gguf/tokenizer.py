"""Checks that the tokenizer of a GGUF file is supported."""

from __future__ import annotations

import numpy as np

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.splits import SPLITS

__all__ = ["KINDS", "NO_PREFIX", "PREFIX", "check_gguf_tokenizer"]

KINDS = ("llama", "gpt2", "gemma4")
"""Values of ``tokenizer.ggml.model``."""
PREFIX = "tokenizer.ggml.add_space_prefix"
NO_PREFIX = ("gemma", "gemma2", "gemma3")
"""Architectures whose texts begin without a space of their own."""


def check_gguf_tokenizer(header: GGUFHeader) -> None:
    """Raise ``ModelFormatError`` for a tokenizer that would give other ids than llama.cpp, or forbids tokens."""
    kind, arch = header.scalar("tokenizer.ggml.model"), header.scalar("general.architecture")
    if kind not in (*KINDS, None):  # a file without a vocabulary is a model for token ids
        raise ModelFormatError(f"tokenizer.ggml.model={shown(kind)} is not supported: only {' and '.join(KINDS)} are")
    pre = header.scalar("tokenizer.ggml.pre", "default")
    if kind == "gpt2" and pre not in SPLITS:
        raise ModelFormatError(
            f"tokenizer.ggml.pre={shown(pre)} is not supported, which splits text in a way of its own: "
            "use the model's safetensors files"
        )
    if kind == "llama" and arch in NO_PREFIX and header.scalar(PREFIX, True) is not False:
        raise ModelFormatError(
            f"{PREFIX} is not false: llama.cpp would put a space before texts that Gemma was never trained on, and "
            "merge it in a way of its own: set it to false, as in files of today"
        )
    forbidden = header.metadata.get("tokenizer.ggml.suppress_tokens")
    if forbidden is not None and np.size(forbidden):
        raise ModelFormatError("tokenizer.ggml.suppress_tokens forbids tokens, which is not applied: remove it")
