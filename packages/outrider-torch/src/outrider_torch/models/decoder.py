"""The layers of a decoder on torch, on packed tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from outrider.cache import KVCache
from outrider.models.batch import Span
from outrider.models.config import ModelConfig
from outrider.models.frequencies import inverse_frequencies, magnitudes
from outrider.models.layer_kinds import layer_kinds
from outrider_torch.kernels.attention.attention import plan
from outrider_torch.kernels.layers import DecoderLayers, LayerForward
from outrider_torch.kernels.recurrent.plan import plan_states
from outrider_torch.kernels.rope import rotations
from outrider_torch.models.weights import TorchWeights


class Decoder:
    """A model between its embedding and its last norm."""

    def __init__(self, config: ModelConfig, weights: TorchWeights, *, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._layers = [weights.layer(i) for i in range(config.num_layers)]
        self.backend = DecoderLayers(weights.dimensions)
        self._kinds = layer_kinds(config)
        self.rotations = [
            None if kind.rope is None else self._rotation_table(*kind.rope).to(device) for kind in self._kinds
        ]
        """complex64 [positions, 1, rotated / 2] of each kind of layer with attention; None: nothing is rotated."""
        temperature = config.query_temperature
        factors = None if temperature is None else torch.from_numpy(temperature.factors(config.max_seq_len))
        factors = None if factors is None else factors.to(device, dtype)[:, None, None]
        unrotated = temperature is not None and temperature.unrotated
        self._query_scales = [None if unrotated and kind.rope is not None else factors for kind in self._kinds]

    def _rotation_table(self, theta: float, scaling: Mapping[str, Any]) -> Tensor:
        c = self._config
        inverse = inverse_frequencies(c.rope_dim, theta, scaling, c.rotary_dim)
        return rotations(inverse, c.max_seq_len, magnitudes(c.rope_dim, scaling, c.rotary_dim))

    def over(self, spans: Sequence[Span], positions: Sequence[int], cache: KVCache) -> tuple[int, LayerForward]:
        """A function that computes layers over packed rows, and the number of rows to pad its input to."""
        c, count = self._config, len(positions)
        alone = len(spans) == 1 and spans[0].mask is None
        rows = self.backend.padded_rows(count, alone)
        at = torch.tensor([*positions, *[0] * (rows - count)], device=self._device)
        draw = partial(
            plan,
            spans,
            group=c.num_heads // c.num_kv_heads,
            kv_heads=c.num_kv_heads,
            rows=rows if alone else count,
            dtype=self._dtype,
            device=self._device,
        )
        by_window = {
            (window, chunked): draw(window=window, chunked=chunked)
            for window, chunked in {(kind.window, kind.chunked) for kind in self._kinds}
        }
        plans = [by_window[kind.window, kind.chunked] for kind in self._kinds]
        turns = [None if table is None else table[at] for table in self.rotations]
        scales = [None if factors is None else factors[at] for factors in self._query_scales]
        states = None if cache.states is None else plan_states(spans, cache.states, rows, self._device)
        return rows, self.backend.layers(plans, cache, turns, scales, states)

    def through(
        self, x: Tensor, forward: LayerForward, layers: int | None = None, features: tuple[int, ...] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """x: [T, d] after the first ``layers`` layers (None: all), and after each layer count in ``features``."""
        y = None
        taken = {0: x} if 0 in features else {}
        for i, layer in enumerate(self._layers[:layers]):
            x, y = forward(layer, x, y)
            if i + 1 in features:
                x, y = x + y, None
                taken[i + 1] = x
        return x if y is None else x + y, [taken[n] for n in features]
