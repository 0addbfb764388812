"""Causal language models of transformers, by its own modelling code, over our caches (docs/families.md#bridge)."""

from outrider_transformers.model import BridgedModel

__all__ = ["BridgedModel"]
