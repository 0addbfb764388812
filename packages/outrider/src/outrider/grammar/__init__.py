"""Structured output: grammars compiled to token masks by ``llguidance``."""

from __future__ import annotations

from outrider.grammar.compiler import GrammarCompiler
from outrider.grammar.constraint import GrammarConstraint

__all__ = ["GrammarCompiler", "GrammarConstraint"]
