"""How byte-level vocabularies of GGUF files split text into words, by ``tokenizer.ggml.pre``.

The names and expressions are those of llama.cpp's ``llm_tokenizer_bpe``; where it rewrites an expression of the
model's authors, the authors' stands here. Expressions apply in order, each to the pieces of those before it: matches
and the gaps between them are pieces.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ADDS_BOS", "SPLITS", "WHOLE_WORDS"]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD, _REST = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_EUROPEAN = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


def _cased(short: str, digits: str) -> str:
    """An expression that splits words at changes of case: ``HelloWorld`` is two words."""
    return (
        "|".join(
            f"[^\\r\\n\\p{{L}}\\p{{N}}]?{_UPPER}{first}{_LOWER}{then}{short}"
            for first, then in (("*", "+"), ("+", "*"))
        )
        + f"|{digits}|{_CASED_REST}"
    )


_LLAMA3 = (rf"{_SHORT}|{_WORD}|\p{{N}}{{1,3}}|{_REST}",)
_QWEN2 = (rf"{_SHORT}|{_WORD}|\p{{N}}|{_REST}",)
_DIGITS = (r"\p{N}", _GPT2)
_GPT4O = (_cased(f"{_SHORT}?", r"\p{N}{1,3}"),)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _CJK,
    _PUNCTUATION + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

_NAMES: Mapping[tuple[str, ...], str] = {
    (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"): "default",
    (_GPT2,): (
        "gpt-2 phi-2 gigachat a.x-4.0 mellum modern-bert exaone4 mpt olmo jais trillion granite-docling "
        "jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe"
    ),
    _DIGITS: "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    _LLAMA3: "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe chatglm-bpe glm4 glm5",
    _QWEN2: "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    (r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _REST,): "ufakzeka",
    (
        rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): ("qwen35"),
    (_cased("", r"\p{N}"),): "tekken",
    _GPT4O: "gpt-4o llama4 kanana2 talkie minimax-m2",
    _DEEPSEEK3: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"): "deepseek-coder",
    (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"): "falcon",
    (_EUROPEAN,): "poro-chat bloom gpt3-finnish",
    (_EUROPEAN, r"\p{N}"): "viking",
    (r"\p{N}+", r"(?=(\d{3})+(?!\d))"): "superbpe",
    (rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",): (
        "bailingmoe bailingmoe2 llada-moe"
    ),
    (rf"{_SHORT}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",): "seed-coder",
    (r"[^\n]+|[\n]+", *_QWEN2): "laguna",
    (
        rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ): "exaone-moe",
    (r"\p{N}{1,3}", rf"{_SHORT}|{_WORD}|\p{{N}}+|{_REST}"): "minicpm5",
}

SPLITS: Mapping[str, tuple[str, ...]] = {name: split for split, names in _NAMES.items() for name in names.split()}
"""Expressions by name."""

ADDS_BOS = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
)
"""Names whose texts begin with the beginning-of-text token unless the file says otherwise."""

WHOLE_WORDS = ADDS_BOS | frozenset(["glm4", "glm5", "minicpm5"])
"""Names for which a word that is a token becomes that token, whatever the merges say."""
