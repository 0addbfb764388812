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
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_YOUTU_RUNS = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters that have a case, as DeepSeek's authors list them."""
_EUROPEAN = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


def _cased(short: str, digits: str, *, but: str = "", rest: str = _CASED_REST) -> str:
    """An expression that splits words at changes of case: ``HelloWorld`` is two words.

    ``but``: letters of no word. ``rest``: how text without letters and digits is split.
    """
    upper, lower = (f"[{letters}&&[^{but}]]" if but else letters for letters in (_UPPER, _LOWER))
    return (
        "|".join(
            f"[^\\r\\n\\p{{L}}\\p{{N}}]?{upper}{first}{lower}{then}{short}" for first, then in (("*", "+"), ("+", "*"))
        )
        + f"|{digits}|{rest}"
    )


_LLAMA3 = (rf"{_SHORT}|{_WORD}|\p{{N}}{{1,3}}|{_REST}",)
_QWEN2 = (rf"{_SHORT}|{_WORD}|\p{{N}}|{_REST}",)
_DIGITS = (r"\p{N}", _GPT2)
_GPT4O = (_cased(f"{_SHORT}?", r"\p{N}{1,3}"),)
_MARKED = _PUNCTUATION + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_DEEPSEEK3 = (r"\p{N}{1,3}", _CJK, _MARKED + r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_JAIS2_SPACES = "".join(rf"\s{{{n}}}(?!\S)|" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))

_NAMES: Mapping[tuple[str, ...], str] = {
    (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"): "default",
    (_GPT2,): (
        "gpt-2 phi-2 gigachat a.x-4.0 mellum modern-bert exaone4 mpt olmo jais trillion granite-docling "
        "jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe"
    ),
    _DIGITS: "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    _LLAMA3: (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe "
        "chatglm-bpe glm4 glm5"
    ),
    _QWEN2: "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    (r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _REST,): "ufakzeka",
    (
        rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): ("qwen35"),
    (_cased("", r"\p{N}"),): "tekken",
    (_YOUTU_RUNS, _cased(f"{_SHORT}?", r"\p{N}")): "youtu",
    (r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O): "tiny_aya cohere2moe",
    (r"[\p{Han}]+|" + _cased(f"{_SHORT}?", r"\p{N}{1,3}", but=r"\p{Han}", rest=_REST),): "kimi-k2",
    _GPT4O: "gpt-4o llama4 kanana2 talkie minimax-m2",
    _DEEPSEEK3: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"): "deepseek-coder",
    (
        r"[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
        r"\p{N}",
    ): "deepseek-llm",
    (r"\p{N}{1,3}", _CJK, _MARKED + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"): "spark2_5",
    (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", _ASIAN, _DEEPSEEK3[2]): "afmoe",
    (rf"{_SHORT}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_JAIS2_SPACES}\s",): "jais-2",
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
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken")
)
"""Names whose texts begin with the beginning-of-text token unless the file says otherwise."""

WHOLE_WORDS = ADDS_BOS | frozenset(["glm4", "glm5", "minicpm5", "youtu"])
"""Names for which a word that is a token becomes that token, whatever the merges say."""
