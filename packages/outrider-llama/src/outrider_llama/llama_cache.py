"""Caches of llama-cpp-python. Their place is taken by the engine's own cache of prefixes, which is always on."""

from __future__ import annotations


class BaseLlamaCache:
    """A cache that ``Llama.set_cache`` accepts, and that holds nothing."""

    def __init__(self, capacity_bytes: int = 2 << 30) -> None:
        self.capacity_bytes = capacity_bytes

    @property
    def cache_size(self) -> int:
        return 0


class LlamaRAMCache(BaseLlamaCache):
    """In memory."""


class LlamaDiskCache(BaseLlamaCache):
    """On disk: refused by ``Llama.set_cache``, as ``Llama(session_dir=...)`` keeps conversations on disk."""

    def __init__(self, cache_dir: str = ".cache/llama_cache", capacity_bytes: int = 2 << 30) -> None:
        super().__init__(capacity_bytes)
        self.cache_dir = cache_dir


LlamaCache = LlamaRAMCache
