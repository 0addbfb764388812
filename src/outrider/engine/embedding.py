"""Embeddings of prompts: the mean of the target's last hidden states, summed up as a prompt is read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.engine.request import Request
from outrider.engine.runner import TargetOutput
from outrider.models.config import ModelConfig


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
    last = output.features[:count, -config.hidden_size :].contiguous()  # layers are in ascending order
    own = request.final_norm(last).double().sum(0)
    request.hidden_sum = own if start == 0 or request.hidden_sum is None else request.hidden_sum + own


def embedding(request: Request) -> Tensor:
    """float32 [d], of length 1, of a request whose prompt has been read."""
    assert request.hidden_sum is not None, "no embedding was asked for"
    return torch.nn.functional.normalize(request.hidden_sum, dim=0).float()
