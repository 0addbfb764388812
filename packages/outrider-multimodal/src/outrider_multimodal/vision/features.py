"""Features of images that were seen lately, so that the next turn of a conversation need not compute them again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor

from outrider.utils.partitioned_store import PartitionedStore

__all__ = ["FeatureCache"]

CAPACITY = 256 << 20
"""Bytes of all domains together."""


class _Seen:
    """By one domain, least recently used first."""

    def __init__(self) -> None:
        self.features: OrderedDict[bytes, Tensor] = OrderedDict()
        self.size = 0

    def evict(self) -> None:
        _, dropped = self.features.popitem(last=False)
        self.size -= dropped.nbytes

    def note(self, digest: bytes, features: Tensor) -> None:
        if digest not in self.features:
            self.size += features.nbytes
        self.features[digest] = features
        self.features.move_to_end(digest)


class FeatureCache:
    """Apart for each domain: that an image was seen before would else show in the time that it takes."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._domains = PartitionedStore(_Seen, capacity)
        self._lock = threading.Lock()

    def get(self, digest: bytes, domain: str, tenant: str, compute: Callable[[], Tensor]) -> Tensor:
        """The features of the image with ``digest``, computed if the domain has not seen it lately."""
        with self._lock:
            handle = self._domains.open(domain, tenant)
            found = handle.store.features.get(digest)
        try:
            features = compute() if found is None else found
            with self._lock:
                if self._domains.fits(features.nbytes):
                    handle.store.note(digest, features)
        finally:
            with self._lock:
                self._domains.close(handle)
        return features
