"""Compiles the structured outputs that requests ask for, each grammar once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

from llguidance import LLMatcher, LLTokenizer

from outrider.config.structured import Kind, StructuredOutput
from outrider.errors import InvalidRequestError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.utils.child import ChildError
from outrider.verify.constraint import Constraint
from outrider.verify.grammar.constraint import GrammarConstraint, one_line
from outrider.verify.grammar.matcher import cache_key, compile_grammar, llguidance_tokenizer
from outrider.verify.grammar.sandbox import GrammarSandbox
from outrider.verify.grammar.thinking import behind_thinking

MAX_CACHED = 64  # grammars, and refusals, that are not compiled again

GrammarKey = tuple[str, Kind, str, bool]
"""The domain, and what to compile: how long that takes must not tell one domain what another has asked for."""


class GrammarCompiler:
    """The grammars of one model. Safe to share between threads.

    The first use takes about a second, as the vocabulary is sorted into a trie, here and in a process of its own where
    every new grammar is tried first (``sandbox.py``); after that a schema of ordinary size takes milliseconds.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> None:
        """``eos_token_ids``: all tokens that end a text; a structured output ends with one of them."""
        self._tokenizer = tokenizer
        self._eos = [token for token in eos_token_ids if token < tokenizer.vocab_size]
        self._lock = threading.Lock()  # held for no longer than a look-up, as the engine's own thread may wait for it
        self._setup = threading.Lock()  # while the vocabulary is read
        self._compiled: OrderedDict[GrammarKey, LLMatcher | str] = OrderedDict()  # or why it was refused

    def constraint(self, structured: StructuredOutput, domain: str = "") -> GrammarConstraint:
        """A new request's constraint. Requests of one ``domain`` share compiled grammars.

        Raises:
            InvalidRequestError: the grammar is wrong, allows nothing, or is too complex; or the model names no
                end-of-text token, or its tokenizer is of a kind that cannot be constrained.
        """
        key: GrammarKey = (domain, *cache_key(structured))
        compiled = self._lookup(key) or self._store(key, self._compile(key))
        if isinstance(compiled, str):
            raise InvalidRequestError(f"{structured.kind} cannot be used: {compiled}", param=structured.kind)

        def recompile() -> LLMatcher:
            matcher = compile_grammar(self._llguidance, *key[1:])
            self._store(key, matcher)
            return matcher

        return GrammarConstraint(
            recompile,
            compiled,
            self._eos,
            self._tokenizer.vocab_size,
            controls=self._tokenizer.special_ids,
            spell=self._llguidance.greedy_tokenize,
        )

    def behind_thinking(self, form: Constraint, markers: tuple[str, str], prompt: Sequence[int]) -> Constraint:
        """``form`` for the text behind a thinking section. See ``grammar.thinking.behind_thinking``."""
        return behind_thinking(form, markers, prompt, self._tokenizer, self._eos)

    def is_known(self, structured: StructuredOutput, domain: str = "") -> bool:
        """Whether ``constraint`` will take no time."""
        return self._lookup((domain, *cache_key(structured))) is not None

    def prepare(self) -> None:
        """Sort the vocabulary now. Raises InvalidRequestError if the tokenizer cannot be constrained."""
        with self._setup:
            _ = self._llguidance, self._sandbox

    def _lookup(self, key: GrammarKey) -> LLMatcher | str | None:
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
            return self._compiled.get(key)

    def _store(self, key: GrammarKey, compiled: LLMatcher | str) -> LLMatcher | str:
        with self._lock:
            self._compiled[key] = compiled
            self._compiled.move_to_end(key)
            while len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        return compiled

    def _compile(self, key: GrammarKey) -> LLMatcher | str:
        if not self._eos:
            return "the model names no end-of-text token, which a structured output has to end with"
        with self._setup:
            own, sandbox = self._llguidance, self._sandbox
        try:
            problem = sandbox.check(*key[1:])
        except ChildError as error:
            problem = f"compiling it {error}: simplify it"
        return one_line(problem) if problem is not None else compile_grammar(own, *key[1:])

    @cached_property
    def _llguidance(self) -> LLTokenizer:
        try:
            return llguidance_tokenizer(self._tokenizer.to_json(), self._tokenizer.vocab_size, self._eos)
        except ValueError as error:
            raise InvalidRequestError(
                f"this model's tokenizer cannot be held to a structure ({one_line(str(error))}): use another model",
                param="structured",
            ) from None

    @cached_property
    def _sandbox(self) -> GrammarSandbox:
        return GrammarSandbox(self._tokenizer.to_json(), self._tokenizer.vocab_size, self._eos)
