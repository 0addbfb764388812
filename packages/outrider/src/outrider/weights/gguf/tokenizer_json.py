"""Converts the tokenizer of a GGUF file to the content of ``tokenizer.json``, with the ids that llama.cpp gives.

transformers' conversion differs in four points. It takes the space before a text from the architecture, not from
``tokenizer.ggml.add_space_prefix``. It knows some names of ``tokenizer.ggml.pre``, and splits as GPT-2 does for all
others. It merges words that are tokens. It adds no beginning-of-text token where a file says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.utils.byte_alphabet import byte_alphabet
from outrider.utils.json_files import shown
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.splits import ADDS_BOS, SPLITS, WHOLE_WORDS
from outrider.weights.gguf.tokenizer import KINDS, NO_PREFIX, PREFIX

__all__ = ["gguf_tokenizer", "merges_by_score", "named_tokens"]

_SPACE = "\u2581"
_ESCAPE = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
_CONTROL, _USER_DEFINED = 3, 4  # types of tokens
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_USUAL = {
    "gpt2": ("<|endoftext|>",), "llama": ("<unk>", "<s>", "</s>"),
    "gemma": ("<unk>", "<bos>", "<eos>", "<pad>", "<mask>"),
}  # fmt: skip
"""Special tokens of transformers' classes, special whatever type the file gives them."""


def gguf_tokenizer(header: GGUFHeader) -> dict[str, Any]:
    """The object that ``tokenizer.json`` holds. Raises ``ValueError`` for a missing or unsupported vocabulary."""
    kind = header.scalar("tokenizer.ggml.model")
    pre = header.scalar("tokenizer.ggml.pre", "default")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if kind not in KINDS or not isinstance(tokens, list) or (kind == "gpt2" and pre not in SPLITS):
        raise ValueError(f"it has no vocabulary of a known kind (tokenizer.ggml.model={shown(kind)})")
    parts = _byte_level(header, tokens, pre) if kind == "gpt2" else _sentencepiece(header, tokens)
    bos = header.scalar("tokenizer.ggml.add_bos_token", kind == "llama" or pre in ADDS_BOS) or kind == "gemma4"
    eos = header.scalar("tokenizer.ggml.add_eos_token", False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(header, tokens, parts["model"]["vocab"]),
        **parts,
        "post_processor": _frame(header, bos=bos is True, eos=eos is True),
    }


def _byte_level(header: GGUFHeader, tokens: list[str], pre: str) -> dict[str, Any]:
    """A vocabulary of bytes, as GPT-2's."""
    splits = [{"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False} for r in SPLITS[pre]]
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    spelling = {byte: letter for letter, byte in byte_alphabet().items()}
    known = "".join(spelling.values())
    spelled = [t if not t.strip(known) else "".join(spelling[byte] for byte in t.encode()) for t in tokens]
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, letters]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _model(header, spelled, whole_words=pre in WHOLE_WORDS, byte_fallback=False),
    }


def _sentencepiece(header: GGUFHeader, tokens: list[str]) -> dict[str, Any]:
    """A SentencePiece vocabulary: words begin with a space, and so does a text unless the file says otherwise."""
    arch, prefix = header.scalar("general.architecture"), header.scalar(PREFIX, True)
    gemma = _is_gemma(header)
    prefix = prefix and not gemma
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}
    ]  # fmt: skip
    normalizer: dict[str, Any] | None = _ESCAPE
    splitter: dict[str, Any] | None = None
    if prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        if arch == "phi3":  # another space before a text that begins with one
            normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _SPACE}, _ESCAPE]}
        else:
            normalizer = None
            splitter = {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "first", "split": False}
    if gemma:  # the file spells runs of spaces with spaces
        tokens = [_SPACE * len(token) if " " in token and not token.strip() else token for token in tokens]
    return {
        "normalizer": normalizer,
        "pre_tokenizer": splitter,
        "decoder": {"type": "Sequence", "decoders": steps},
        "model": _model(header, tokens, byte_fallback=True, unknown="<unk>" if gemma else None, in_order=gemma),
    }


def _model(
    header: GGUFHeader,
    tokens: list[str],
    *,
    byte_fallback: bool,
    whole_words: bool = False,
    unknown: str | None = None,
    in_order: bool = False,
) -> dict[str, Any]:
    """The ``model`` of ``tokenizer.json``, which merges pairs of tokens (BPE).

    ``in_order``: for a file without merges, make them in the order of the tokens, not of their scores; first come
    tokens that are never split, so that a long run of spaces begins with the longest.
    """
    vocab = {token: i for i, token in enumerate(tokens)}
    given = header.metadata.get("tokenizer.ggml.merges")
    merges: list[tuple[str, str]] | list[str]
    together = "\n".join(tokens)  # the library splits the older form at spaces, and skips lines of ``#version``
    joined = not (" " in together or "#version" in together)  # then that form, which is read faster, is unambiguous
    if given is None and in_order:
        merges = _merges_in_order(header, tokens, vocab, joined=joined)
    else:
        pairs = _checked(given, vocab) if given is not None else _merges_of_scores(header, tokens, vocab)
        merges = list(map(" ".join, pairs)) if joined else pairs
    affix = None if byte_fallback else ""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": affix,
        "end_of_word_suffix": affix,
        "fuse_unk": byte_fallback,
        "byte_fallback": byte_fallback,
        "ignore_merges": whole_words,
        "vocab": vocab,
        "merges": merges,
    }


def _merges_of_scores(header: GGUFHeader, tokens: list[str], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Merges in the order of the file's scores. Raises ``ValueError`` if a token has none."""
    found = header.metadata.get("tokenizer.ggml.scores")
    scores = np.asarray([] if found is None else found).tolist()
    if len(scores) != len(tokens):
        raise ValueError("it has neither merges nor a score for each token")
    return merges_by_score(tokens, scores, vocab)


def _merges_in_order(
    header: GGUFHeader, tokens: list[str], vocab: Mapping[str, int], *, joined: bool
) -> list[tuple[str, str]] | list[str]:
    """Merges of tokens that are never split, all of one score, and those of the others in their order."""
    whole = dict(zip(tokens, np.isin(_types(header, len(tokens)), (_CONTROL, _USER_DEFINED)).tolist(), strict=True))
    first, others = ([token for token in whole if whole[token] is kind] for kind in (True, False))
    before = merges_by_score(first, [0] * len(first), vocab)
    if not joined:
        return before + merges_by_score(others, range(0, -len(others), -1), vocab)
    return (
        list(map(" ".join, before))
        + [  # half a million pairs take a third less time as texts than as tuples
            f"{left} {right}"
            for word in others
            for cut in range(len(word) - 1, 0, -1)
            if (right := word[cut:]) in vocab and (left := word[:cut]) in vocab
        ]
    )


def _checked(merges: Sequence[str], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """``merges`` as pairs. Raises ``ValueError`` for one that is no pair of tokens, or makes none."""
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    for left, right in pairs:
        if " " in right or not (left in vocab and right in vocab and left + right in vocab):
            raise ValueError(f"the merge {shown(f'{left} {right}')} is not of two tokens to one")
    return pairs


def merges_by_score(words: Sequence[str], scores: Sequence[float], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every pair of tokens that joins to a word, best word first; SentencePiece merges by these scores at each step.

    Pairs of one word come longest left part first, as in transformers, and so do those of words with equal scores.
    """
    ranked = dict(sorted(dict(zip(words, scores, strict=True)).items(), key=itemgetter(1), reverse=True))
    pairs: list[tuple[str, str]] = [
        (left, right)
        for word in ranked
        for cut in range(len(word) - 1, 0, -1)
        if (right := word[cut:]) in ids and (left := word[:cut]) in ids
    ]
    if len(set(scores)) < len(ranked):
        pairs.sort(key=lambda pair: (ranked["".join(pair)], len(pair[0]), len(pair[1])), reverse=True)
    return pairs


def named_tokens(header: GGUFHeader) -> dict[str, str | None]:
    """``bos_token`` and the like, as ``tokenizer_config.json`` names them; None: the file has none."""
    tokens = header.metadata.get("tokenizer.ggml.tokens") or []
    ids = {name: header.scalar(f"tokenizer.ggml.{key}_token_id") for name, key in _NAMED.items()}
    return {name: tokens[i] if isinstance(i, int) and 0 <= i < len(tokens) else None for name, i in ids.items()}


def _added_tokens(header: GGUFHeader, tokens: list[str], vocab: Mapping[str, int]) -> list[dict[str, Any]]:
    """Tokens that are never split: special and user-defined tokens.

    transformers gives ids behind the vocabulary to usual special tokens that a file lacks; here their spelling is text.
    """
    types = _types(header, len(tokens))
    control, own = ([tokens[i] for i in np.flatnonzero(types == kind)] for kind in (_CONTROL, _USER_DEFINED))
    special = {*control, *_USUAL[_family(header)], *(token for token in named_tokens(header).values() if token)}
    found = {vocab[token]: token for token in (*special, *own) if token in vocab}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [{"id": i, "content": token, **flags, "special": token in special} for i, token in sorted(found.items())]


def _types(header: GGUFHeader, count: int) -> NDArray[Any]:
    """The type of each token; 0 where the file has none."""
    said = header.metadata.get("tokenizer.ggml.token_type")
    types = np.zeros(count, np.int64)
    if said is not None:
        known = np.asarray(said)[:count]
        types[: len(known)] = known
    return types


def _family(header: GGUFHeader) -> str:
    kind: str = header.scalar("tokenizer.ggml.model")
    return "gemma" if kind != "gpt2" and _is_gemma(header) else kind


def _is_gemma(header: GGUFHeader) -> bool:
    return header.scalar("general.architecture") in NO_PREFIX or header.scalar("tokenizer.ggml.model") == "gemma4"


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
