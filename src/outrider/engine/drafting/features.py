"""Which features of the target each request's drafters read, and who gets which."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.engine.drafting.isolation import IsolatedDrafters
from outrider.engine.request import Request

Layers = tuple[int, ...]
"""Layer counts, ascending: the features are the residual stream after so many layers."""


class FeatureRouting:
    """Gives drafters that are ``FeatureReader`` the features they ask for."""

    def __init__(self, drafters: IsolatedDrafters) -> None:
        self._isolated = drafters

    def layers(self, requests: Sequence[Request]) -> Layers:
        """All layers whose features drafters of these requests read."""
        return tuple(sorted({layer for r in requests for _, layers in self._readers(r) for layer in layers}))

    def forward(self, request: Request, start: int, features: Tensor, layers: Layers) -> None:
        """Forward features [n, len(layers) * d] of committed tokens from ``start`` on, to each drafter its own."""
        for name, wanted in self._readers(request):
            own = features
            if wanted != layers:
                parts = features.chunk(len(layers), dim=-1)
                own = torch.cat([parts[layers.index(layer)] for layer in wanted], dim=-1)
            self._isolated.read(name, request, start, own)

    def _readers(self, request: Request) -> list[tuple[str, Layers]]:
        """The request's drafters that read features, and the layers of each."""
        names = [name for name in request.speculation.combination.names if name not in request.switched_off]
        layers = [(name, getattr(self._isolated.drafters.get(name), "feature_layers", ())) for name in names]
        return [(name, wanted) for name, wanted in layers if wanted]
