"""Loads an engine from its options: its ``models``, its default ``drafts``, ``memory`` for caches."""

from outrider.loading.engine import LoadedEngine, load
from outrider.loading.models import LoadedModels

__all__ = ["LoadedEngine", "LoadedModels", "load"]
