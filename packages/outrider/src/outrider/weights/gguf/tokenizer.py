"""Where the tokenizer that transformers reads from a GGUF file is not the file's, as llama.cpp reads it.

transformers takes the spaces before a text from the architecture, ``tokenizer.ggml.add_space_prefix`` notwithstanding;
knows some names of ``tokenizer.ggml.pre``, and splits as GPT-2 does for all others; merges words that are tokens; and
adds no beginning-of-text token where a file says nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.splits import ADDS_BOS, SPLITS, WHOLE_WORDS

__all__ = ["check_gguf_tokenizer", "correct_tokenizer"]

_SPACE = "\u2581"
_KINDS = ("llama", "gpt2")
_ESCAPE = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
_PREFIX = "tokenizer.ggml.add_space_prefix"
_NO_PREFIX = ("gemma", "gemma2", "gemma3")


def check_gguf_tokenizer(header: GGUFHeader) -> None:
    """Raise ``ModelFormatError`` for a tokenizer that would give other ids than llama.cpp, or forbids tokens."""
    kind, arch = header.scalar("tokenizer.ggml.model"), header.scalar("general.architecture")
    if kind not in (*_KINDS, None):  # a file without a vocabulary is a model for token ids
        raise ModelFormatError(f"tokenizer.ggml.model={shown(kind)} is not supported: only {' and '.join(_KINDS)} are")
    pre = header.scalar("tokenizer.ggml.pre", "default")
    if kind == "gpt2" and pre not in SPLITS:
        raise ModelFormatError(
            f"tokenizer.ggml.pre={shown(pre)} is not supported, which splits text in a way of its own: "
            "use the model's safetensors files"
        )
    if kind == "llama" and arch in _NO_PREFIX and header.scalar(_PREFIX, True) is not False:
        raise ModelFormatError(
            f"{_PREFIX} is not false: llama.cpp would put a space before texts that Gemma was never trained on, and "
            "merge it in a way of its own: set it to false, as in files of today"
        )
    forbidden = header.metadata.get("tokenizer.ggml.suppress_tokens")
    if forbidden is not None and np.size(forbidden):
        raise ModelFormatError("tokenizer.ggml.suppress_tokens forbids tokens, which is not applied: remove it")


def correct_tokenizer(raw: dict[str, Any], header: GGUFHeader) -> None:
    """Change ``tokenizer.json``, as an object, to the file's own settings."""
    kind = header.scalar("tokenizer.ggml.model")
    pre = header.scalar("tokenizer.ggml.pre", "default")
    if kind == "llama":
        if not header.scalar(_PREFIX, True):
            _remove_prefix(raw)
    else:
        splits = [
            {"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False} for r in SPLITS[pre]
        ]
        letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        raw["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*splits, letters]}
        raw["model"]["ignore_merges"] = pre in WHOLE_WORDS
    bos = header.scalar("tokenizer.ggml.add_bos_token", kind == "llama" or pre in ADDS_BOS)
    eos = header.scalar("tokenizer.ggml.add_eos_token", False)
    raw["post_processor"] = _frame(header, bos=bos is True, eos=eos is True)


def _remove_prefix(raw: dict[str, Any]) -> None:
    """Let a text begin without a space of its own."""
    raw["normalizer"], raw["pre_tokenizer"] = _ESCAPE, None
    raw["decoder"]["decoders"] = [step for step in raw["decoder"]["decoders"] if step["type"] != "Strip"]


def _frame(header: GGUFHeader, *, bos: bool, eos: bool) -> dict[str, Any] | None:
    tokens = header.metadata.get("tokenizer.ggml.tokens") or []
    ids = {
        side: i
        for side, on in (("bos", bos), ("eos", eos))
        if on and isinstance(i := header.scalar(f"tokenizer.ggml.{side}_token_id"), int) and i < len(tokens)
    }
    if not ids:
        return None

    def framed(text: str, kind: int) -> list[Any]:
        named = {side: {"SpecialToken": {"id": tokens[i], "type_id": kind}} for side, i in ids.items()}
        inner = {"Sequence": {"id": text, "type_id": kind}}
        return [*([named["bos"]] if "bos" in ids else []), inner, *([named["eos"]] if "eos" in ids else [])]

    return {
        "type": "TemplateProcessing",
        "single": framed("A", 0),
        "pair": framed("A", 0) + framed("B", 1),
        "special_tokens": {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in ids.values()},
    }
