"""Compiles what requests ask for, each grammar once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

from llguidance import LLMatcher, LLTokenizer

from outrider.config.structured import Kind, StructuredOutput
from outrider.errors import InvalidRequestError
from outrider.grammar.constraint import GrammarConstraint, one_line
from outrider.grammar.source import compile_source, source_of, tokenizer_of
from outrider.grammar.trial import Trial
from outrider.tokenizer.tokenizer import Tokenizer

KEPT = 16  # grammars, and refusals, that need not be looked at again

Source = tuple[Kind, str, bool]


class Grammars:
    """The grammars of one model. Safe to share between threads.

    The first use takes about a second, as the vocabulary is sorted into a trie, here and in a process of its own where
    every new grammar is tried first (``grammar/trial.py``); after that a schema of ordinary size takes milliseconds.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> None:
        """``eos_token_ids``: all tokens that end a text; a structured output ends with one of them."""
        self._tokenizer = tokenizer
        self._eos = [token for token in eos_token_ids if token < tokenizer.vocab_size]
        self._trying = threading.Lock()  # may take seconds
        self._lock = threading.Lock()  # never does, as the engine's own thread may wait for it
        self._compiled: OrderedDict[Source, LLMatcher | str] = OrderedDict()  # or why it was refused

    def constraint(self, wanted: StructuredOutput) -> GrammarConstraint:
        """A new request's constraint.

        Raises:
            InvalidRequestError: the grammar is wrong, allows nothing, or is too complex; or the model names no
                end-of-text token, or its tokenizer is of a kind that cannot be constrained.
        """
        source = source_of(wanted)
        compiled = self._known(source)
        if compiled is None:
            with self._trying:
                compiled = self._known(source) or self._keep(source, self._try(source))
        if isinstance(compiled, str):
            raise InvalidRequestError(f"{wanted.kind} cannot be used: {compiled}", param=wanted.kind)

        def renew() -> LLMatcher:
            matcher = compile_source(self._own, *source)
            self._keep(source, matcher)
            return matcher

        return GrammarConstraint(renew, compiled, self._eos, self._tokenizer.vocab_size)

    def _known(self, source: Source) -> LLMatcher | str | None:
        with self._lock:
            if source in self._compiled:
                self._compiled.move_to_end(source)
            return self._compiled.get(source)

    def _keep(self, source: Source, compiled: LLMatcher | str) -> LLMatcher | str:
        with self._lock:
            self._compiled[source] = compiled
            self._compiled.move_to_end(source)
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return compiled

    def _try(self, source: Source) -> LLMatcher | str:
        if not self._eos:
            return "the model names no end-of-text token, which a structured output has to end with"
        own, trial = self._own, self._trial
        problem = trial.problem(*source)
        return one_line(problem) if problem is not None else compile_source(own, *source)

    @cached_property
    def _own(self) -> LLTokenizer:
        try:
            return tokenizer_of(self._tokenizer.to_json(), self._tokenizer.vocab_size, self._eos)
        except ValueError as error:
            raise InvalidRequestError(
                f"this model's tokenizer cannot be held to a structure ({one_line(str(error))}): use another model",
                param="structured",
            ) from None

    @cached_property
    def _trial(self) -> Trial:
        return Trial(self._tokenizer.to_json(), self._tokenizer.vocab_size, self._eos)
