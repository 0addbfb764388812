"""Embeddings of prompts: the mean of the target's last hidden states, summed up as a prompt is read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.engine.request import Request
from outrider.engine.runner import TargetOutput
from outrider.models.config import ModelConfig
from outrider.verify.arrays import Floats, host

_LEAST = 1e-12  # length that an embedding of zeros is taken to have


def with_last_layer(layers: tuple[int, ...], requests: Sequence[Request], config: ModelConfig) -> tuple[int, ...]:
    """The layers whose output is wanted: those of drafters, and the last one where a request wants an embedding."""
    if all(request.final_norm is None for request in requests):
        return layers
    return tuple(sorted({*layers, config.num_layers}))


def add_hidden(request: Request, output: TargetOutput, count: int, config: ModelConfig) -> None:
    """Add the hidden states of the ``count`` tokens of a request's prompt that the pass has read.

    A prompt that is read again, after a preemption, begins its sum again. Sums are float64, so that it hardly matters
    in which pieces a prompt was read.
    """
    start = request.num_computed_tokens
    count = min(count, request.prompt_length - start)
    if request.final_norm is None or output.features is None or count <= 0:
        return
    last = output.features[:count, -config.hidden_size :]  # layers are in ascending order
    own = host(request.final_norm(last)).astype(np.float64).sum(0)
    request.hidden_sum = own if start == 0 or request.hidden_sum is None else request.hidden_sum + own


def embedding(request: Request) -> Floats:
    """float32 [d], of length 1, of a request whose prompt has been read."""
    assert request.hidden_sum is not None, "no embedding was asked for"
    length = max(float(np.linalg.norm(request.hidden_sum)), _LEAST)
    return (request.hidden_sum / length).astype(np.float32)
