"""From a structured output to a matcher of ``llguidance``, and the limits it works within."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from

from outrider.config.structured import Kind, StructuredOutput

Speller = Callable[[str], Sequence[int]]
"""From a text to tokens that no control token is among."""

SEPARATORS = {"item_separator": ", ", "key_separator": ": "}  # as most JSON in training texts is written

# Work of one mask: a hostile regex reached 2.5 s with the library's own 200,000 units, and reaches 0.4 s with these.
# An object may have some 250 optional properties (four items each).
LIMITS = LLParserLimits(step_lexer_fuel=50_000, max_lexer_states=20_000, max_items_in_row=1_000, verbose_errors=False)


def llguidance_tokenizer(text: str, vocab_size: int, eos_token_ids: list[int]) -> LLTokenizer:
    """The library's own tokenizer from a ``tokenizer.json``. Raises ValueError for one it does not understand."""
    return LLTokenizer(text, n_vocab=vocab_size, eos_token=eos_token_ids)


def compile_grammar(tokenizer: LLTokenizer, kind: Kind, text: str, any_whitespace: bool) -> LLMatcher:
    """A matcher before its first token. Raises ValueError, with the reason, if the source is wrong or too complex."""
    matcher = LLMatcher(tokenizer, _llguidance_source(kind, text, any_whitespace), log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    return matcher


def plain_token(matcher: LLMatcher, token: int, spell: Speller) -> int:
    """``token``, the only one that is allowed next; the first of the forced text, if that only spells this token.

    Where a text is forced, the library allows the first of the tokens that the tokenizer makes of it, a control token
    too (versions 1.7 to 1.9.1 at least), and then does not take that one.
    """
    if matcher.validate_tokens([token]):
        return token
    spelled = spell(matcher.deep_copy().compute_ff_bytes().decode(errors="ignore"))
    return spelled[0] if spelled else token


def cache_key(structured: StructuredOutput) -> tuple[Kind, str, bool]:
    """The identity of a compiled grammar."""
    return structured.kind, structured.text, structured.any_whitespace


def _llguidance_source(kind: Kind, text: str, any_whitespace: bool) -> str:
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if kind == "choice":
        return LLMatcher.grammar_from_regex("|".join(map(_literal, json.loads(text))))
    if kind == "grammar":
        return grammar_from("grammar", text)
    if any_whitespace:
        return LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_flexible": True})
    return LLMatcher.grammar_from_json_schema(
        text,
        overrides={
            "whitespace_flexible": False,
            "item_separator": SEPARATORS["item_separator"],
            "key_separator": SEPARATORS["key_separator"],
        },
    )


def _literal(choice: str) -> str:
    """A regex that matches exactly this text."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):X}}}" for c in choice)
