"""Routes the target's features to the drafters that read them."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.engine.drafting.isolation import IsolatedDrafters
from outrider.engine.request import Request
from outrider.verify.arrays import Array, columns

Layers = tuple[int, ...]
"""Layer numbers from 1, ascending: the features are the residual stream after each of these layers."""


class FeatureRouting:
    """Passes features to drafters that are ``FeatureReader``."""

    def __init__(self, drafters: IsolatedDrafters) -> None:
        self._isolated = drafters
        self._reading: dict[str, list[tuple[str, Layers]]] = {}  # by the requests' ``draft`` option

    def layers(self, requests: Sequence[Request]) -> Layers:
        """The layers whose features the drafters of these requests read."""
        wanted = {layer for request in requests for _, layers in self._readers(request) for layer in layers}
        return tuple(sorted(wanted)) if wanted else ()

    def forward(self, request: Request, start: int, features: Array, layers: Layers) -> None:
        """Pass features [n, len(layers) * d] of committed tokens from ``start`` on, its own layers to each drafter."""
        for name, wanted in self._readers(request):
            own = features
            if wanted != layers:
                d = features.shape[1] // len(layers)
                places = map(layers.index, wanted)
                own = columns(features, [slice(place * d, place * d + d) for place in places])
            self._isolated.read(name, request, start, own)

    def _readers(self, request: Request) -> list[tuple[str, Layers]]:
        """The request's drafters that read features, and the layers of each."""
        readers = self._reading.get(request.speculation.draft)
        if readers is None:
            drafters, names = self._isolated.drafters, request.speculation.combination.names
            layers = [(name, getattr(drafters.get(name), "feature_layers", ())) for name in names]
            readers = self._reading[request.speculation.draft] = [each for each in layers if each[1]]
        return [each for each in readers if each[0] not in request.drafts.disabled_sources] if readers else readers
