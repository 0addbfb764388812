"""Adds the tokens of ``tokenizer_config.json`` to a tokenizer, and checks the parts of ``tokenizer.json``.

As in transformers 5, ``tokenizer.json`` alone says how text is split and framed: ``tokenizer_class``,
``add_bos_token``, ``add_eos_token``, ``add_prefix_space``, ``legacy`` and lengths change nothing. The configuration
names special tokens, and tokens that the other file may lack.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from outrider.errors import ModelFormatError
from outrider.utils.json_files import read_json_object, shown

__all__ = ["add_declared_tokens", "check_parts", "special_tokens"]

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_SPACE = "\u2581"
_DECODERS: Mapping[str, Mapping[str, Any]] = {  # steps of a SentencePiece decoder, and their required fields
    "Replace": {"pattern": {"String": _SPACE}, "content": " "},
    "ByteFallback": {},
    "Fuse": {},
    "Strip": {"content": " "},
    "Metaspace": {"replacement": _SPACE},
}


def check_parts(backend: tokenizers.Tokenizer) -> None:
    """Raise ``ModelFormatError`` for a tokenizer whose tokens cannot be mapped to bytes.

    Encoding and decoding are the library's own, whatever the parts.
    """
    model = backend.model
    kind = type(model).__name__
    if kind not in ("BPE", "Unigram", "WordLevel"):
        raise ModelFormatError(f"a {kind} vocabulary is not supported: only BPE, Unigram and WordLevel are")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if getattr(model, name, None):
            raise ModelFormatError(f"{name}={shown(getattr(model, name))} of a vocabulary is not supported")
    if backend.decoder is None:
        return
    state = json.loads(backend.decoder.__getstate__())
    steps = state.get("decoders", [state])
    if {step.get("type") for step in steps} == {"ByteLevel"}:
        return
    for step in steps:
        wanted = _DECODERS.get(step.get("type", ""))
        if wanted is None or any(step.get(key) != value for key, value in wanted.items()):
            raise ModelFormatError(
                f"the decoder {shown(step)} is not supported: only those of byte-level and "
                "SentencePiece vocabularies are"
            )


def add_declared_tokens(backend: tokenizers.Tokenizer, own: Mapping[str, Any]) -> None:
    """Add to ``backend`` the tokens that ``tokenizer_config.json``, ``own``, declares, in transformers' order.

    Raises ``ModelFormatError`` for entries of other types, and for ``split_special_tokens``.
    """
    if own.get("split_special_tokens"):
        raise ModelFormatError("split_special_tokens=true is not supported: remove it")
    declared = own.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict) or not all(key.isdecimal() and len(key) < 10 for key in declared):
        raise ModelFormatError(f"added_tokens_decoder={shown(declared)} does not map ids to tokens")
    tokens = [_token(declared[key]) for key in sorted(declared, key=int)]
    present = set(map(repr, backend.get_added_tokens_decoder().values()))
    backend.add_tokens([token for token in tokens if repr(token) not in present])
    by_text = {token.content: token for token in tokens}
    backend.add_special_tokens([by_text.get(token.content, token) for token in map(_token, _named(own))])
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens([token for token in map(_token, _extra(own)) if token.content not in known])


def _named(own: Mapping[str, Any]) -> Iterator[object]:
    extra = own.get("extra_special_tokens")
    yield from (own[key] for key in _NAMED if own.get(key) is not None)
    yield from extra.values() if isinstance(extra, dict) else ()


def _extra(own: Mapping[str, Any]) -> Iterator[object]:
    for key in ("extra_special_tokens", "additional_special_tokens"):
        value = own.get(key) or []
        if not isinstance(value, list | dict):
            raise ModelFormatError(f"{key}={shown(value)} is no list of tokens: correct tokenizer_config.json")
        yield from value if isinstance(value, list) else ()


def _token(value: object) -> tokenizers.AddedToken:
    if isinstance(value, str) and value:
        return tokenizers.AddedToken(value, special=True, normalized=False)
    fields = {key: item for key, item in value.items() if key != "__type"} if isinstance(value, dict) else {}
    content = fields.pop("content", None)
    flags = {"single_word", "lstrip", "rstrip", "normalized", "special"}
    if not isinstance(content, str) or not fields.keys() <= flags or not all(type(v) is bool for v in fields.values()):
        raise ModelFormatError(f"{shown(value)} is no token: correct tokenizer_config.json")
    return tokenizers.AddedToken(content, **fields)


def special_tokens(own: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Special tokens by key, as ``bos_token``. A file gives each as a string, or as an object with ``content``."""
    older = folder / "special_tokens_map.json"
    raw = (read_json_object(older) if older.exists() else {}) | dict(own)
    tokens = {key: value.get("content") if isinstance(value, dict) else value for key, value in raw.items()}
    return {key: value for key, value in tokens.items() if key.endswith("_token") and isinstance(value, str)}
