"""Compiles untrusted grammars in processes that can be killed: some keep the library busy for hours or take all memory.

``{"type": "integer", "multipleOf": 99999989}`` compiles for longer than anyone has waited, and no limit of the library
covers that. So every new grammar is compiled and walked for a few tokens in a process with a deadline and bounds on
memory and processor time (``utils.child``), and only then, in much the same time, in this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llguidance import LLMatcher

from outrider.config.structured import Kind
from outrider.utils.child import Children
from outrider.verify.grammar.matcher import Speller, compile_grammar, llguidance_tokenizer, plain_token

DEADLINE = 10.0  # seconds for one grammar; ordinary ones take milliseconds
PROCESSES = 2  # at most: each holds the vocabulary, some 50 MB
MEMORY_LIMIT = 3 << 30  # bytes of address space
WALK_LENGTH = 32  # tokens
TARGET = "outrider.verify.grammar.sandbox:serve"


class GrammarSandbox:
    """Tries grammars of one vocabulary."""

    def __init__(self, tokenizer: str, vocab_size: int, eos: Sequence[int]) -> None:
        vocabulary = {"tokenizer": tokenizer, "vocab_size": vocab_size, "eos": list(eos)}
        self.children = Children(
            TARGET, vocabulary, count=PROCESSES, memory=MEMORY_LIMIT, deadline=DEADLINE, name="tries grammars"
        )

    def check(self, kind: Kind, text: str, any_whitespace: bool) -> str | None:
        """Why a grammar must not be used; None if it may be.

        Raises:
            ChildError: it took too long or too much memory, or was cancelled.
            CapacityError: the process cannot be started.
        """
        reply = self.children.ask({"kind": kind, "text": text, "any_whitespace": any_whitespace})
        problem: str | None = reply["problem"]
        return problem


def random_walk(matcher: LLMatcher, eos: Sequence[int], spell: Speller) -> str | None:
    """Take some possible token at each step; the problem met, if there is one.

    A dead end is a problem only at the start: later it may be the walk's own fault, as no model would go there.
    """
    ends = sum(1 << token for token in eos)
    for step in range(WALK_LENGTH):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            error = matcher.get_error()
            if "NoExtension" not in error:
                return f"it becomes too complex ({error})"
            return None if step else "it allows no output at all"
        if not allowed & ~ends and matcher.is_accepting():
            return None
        token = _bit_from(allowed & ~ends or allowed, step * 7919 % allowed.bit_length())
        matcher.consume_token(plain_token(matcher, token, spell))
    return None


def _bit_from(bits: int, start: int) -> int:
    """Place of the lowest set bit at or above ``start``, or of the lowest one, if there is none."""
    above = bits >> start << start or bits
    return (above & -above).bit_length() - 1


def serve(vocabulary: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The child process: answers requests to compile."""
    eos = vocabulary["eos"]
    tokenizer = llguidance_tokenizer(vocabulary["tokenizer"], vocabulary["vocab_size"], eos)

    def check(request: dict[str, Any]) -> dict[str, Any]:
        try:
            problem = random_walk(compile_grammar(tokenizer, **request), eos, tokenizer.greedy_tokenize)
        except (ValueError, RecursionError, MemoryError) as error:
            problem = str(error) or type(error).__name__
        return {"problem": problem}

    return check
