"""A grammar's masks along any output: ``core.constraint.Constraint`` by ``llguidance``."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from outrider.errors import GrammarError
from outrider.verify.grammar.matcher import Speller, plain_token

MAX_CACHED = 32  # matchers of one request: those of a draft's nodes, and of the tokens before it

Path = tuple[int, ...]


@dataclass
class _MatcherState:
    """The matcher after one output, and its mask once asked for."""

    matcher: LLMatcher | None  # None: the output has ended, or the grammar does not allow it
    bits: NDArray[np.int32] | None = None  # [1, words], 32 tokens a word


class GrammarConstraint:
    """The masks of one request.

    A matcher only ever goes forward. Each output has a matcher of its own, a copy of that of the output one token
    shorter, so a refused draft needs no undoing: its matchers are forgotten. Copying takes microseconds, as copies
    share what the lexer has learned.

    The library's own ``rollback`` is not used: it keeps a mask from before (versions 1.5.1 to 1.9.1 at least), which
    then turns up in another place of the same depth. ``tests/grammar/test_constraint.py`` has the example.

    ::

        ()          m0                    outputs            matchers
        (5,)        m0 + 5                committed 5 7      draft 5 7 | 8 9   refused at 9, 4 comes instead:
        (5, 7)      m0 + 5 + 7                               5 7 8 | 4  goes on from the matcher of 5 7 8
        (5, 7, 8)   ...
    """

    def __init__(
        self,
        compile: Callable[[], LLMatcher],
        start: LLMatcher,
        eos: Iterable[int],
        vocab_size: int,
        *,
        controls: Collection[int] = (),
        spell: Speller = lambda _: (),
    ) -> None:
        """Args:
        compile: makes a matcher as ``start``, sharing nothing with it.
        start: a matcher before its first token, never moved.
        controls: control tokens, which no text is made of.
        spell: a text in other tokens.
        """
        self._compile, self._start = compile, start
        self._controls, self._spell = controls, spell
        self._eos = frozenset(eos)
        self._vocab_size = vocab_size
        self._states: OrderedDict[Path, _MatcherState] = OrderedDict()

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        """See ``Constraint.mask``: bool [vocab_size of the tokenizer]."""
        path = tuple(output)
        with contextlib.suppress(_MatcherError):
            return self._mask(path)
        # The lexer shared with other copies may be spent, by another request or by a draft: what counts is whether a
        # new one manages this output.
        try:
            self._start = self._compile()
            self._states.clear()
            return self._mask(path)
        except (_MatcherError, ValueError) as error:
            raise GrammarError(
                f"the structured output cannot go on after {len(path)} tokens ({error}): simplify its grammar"
            ) from None

    def _mask(self, path: Path) -> NDArray[np.bool_] | None:
        state = self._state(path)
        if state.matcher is None:
            return None
        if state.bits is None:
            bits = allocate_token_bitmask(1, self._vocab_size)
            fill_next_token_bitmask(state.matcher, bits)
            _check(state.matcher)
            self._respell(state.matcher, bits)
            state.bits = bits
        flags = np.unpackbits(state.bits.view(np.uint8)[0], count=self._vocab_size, bitorder="little")
        return flags.view(np.bool_)

    def _respell(self, matcher: LLMatcher, bits: NDArray[np.int32]) -> None:
        """Allow plain text where the mask's one token is a control token that the text only spells."""
        token = _only(bits)
        if token is not None and token in self._controls:
            plain = plain_token(matcher, token, self._spell)
            bits[:] = 0
            bits.view(np.uint32)[0, plain // 32] = np.uint32(1 << plain % 32)

    def _state(self, path: Path) -> _MatcherState:
        state = self._states.pop(path, None)
        if state is None:
            state = self._advance(path)
            while len(self._states) >= MAX_CACHED:
                self._states.popitem(last=False)
        self._states[path] = state
        return state

    def _advance(self, path: Path) -> _MatcherState:
        """From the longest known beginning of ``path`` to its end."""
        nearest = range(len(path) - 1, max(-1, len(path) - 1 - MAX_CACHED), -1)
        known = next((n for n in nearest if path[:n] in self._states), None)
        before = self._start if known is None else self._states[path[:known]].matcher
        if before is None:
            return _MatcherState(None)
        matcher = before.deep_copy()
        tokens = path[known or 0 :]
        count = len(tokens) if self._eos.isdisjoint(tokens) else -1
        if count < 0 or matcher.try_consume_tokens(list(tokens)) < count:
            _check(matcher)
            return _MatcherState(None)
        return _MatcherState(matcher)


def _only(bits: NDArray[np.int32]) -> int | None:
    """The token that a mask allows, if it is one."""
    (words,) = np.nonzero(bits[0])
    if len(words) != 1:
        return None
    word = int(bits.view(np.uint32)[0, words[0]])
    return int(words[0]) * 32 + word.bit_length() - 1 if word & (word - 1) == 0 else None


class _MatcherError(Exception):
    """The error text of a matcher."""


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise _MatcherError(one_line(matcher.get_error()))


def one_line(message: str, limit: int = 200) -> str:
    """The library's message without its line breaks, markers and excerpts of any length."""
    text = " ".join(message.replace("<non-verbose/>", "").split())
    return text if len(text) <= limit else text[:limit] + "..."
