"""``LLM``, from the inside out: ``base`` owns a loaded engine, ``requests`` runs requests, ``llm`` takes options."""

from outrider.llm.llm import LLM

__all__ = ["LLM"]
