"""Structured output: grammars compiled to token masks by ``llguidance``."""

from __future__ import annotations

from outrider.verify.grammar.compiler import GrammarCompiler
from outrider.verify.grammar.constraint import GrammarConstraint

__all__ = ["GrammarCompiler", "GrammarConstraint"]
