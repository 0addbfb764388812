"""Cache of recent images' features, for the next turns of a conversation."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor

from outrider.utils.partitioned_store import PartitionedStore

CAPACITY = 256 << 20
"""Bytes of all domains together."""


class _DomainFeatures:
    """The features of one domain, least recently used first."""

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
    """Features by domain: shared ones would reveal the images of other domains by response times."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._domains = PartitionedStore(_DomainFeatures, capacity)
        self._lock = threading.Lock()

    def get(self, digest: bytes, domain: str, tenant: str, compute: Callable[[], Tensor]) -> Tensor:
        """The features of the image with ``digest``, computed if the domain's cache does not have them."""
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
