"""Loads an engine from its options: its ``models``, its default ``drafts``, ``memory`` for caches."""

from outrider.loading.engine import LoadedEngine, load

__all__ = ["LoadedEngine", "load"]
