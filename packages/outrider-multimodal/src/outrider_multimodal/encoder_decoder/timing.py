"""Timing of an encoder before any request."""

from __future__ import annotations

import time

import numpy as np

from outrider_multimodal.encoder_decoder.inputs import EncoderInput
from outrider_multimodal.encoder_decoder.kind import CALIBRATION_SOURCE, DecoderOfEncoder

__all__ = ["time_encoder"]

_REPEATS, _SECONDS = 3, 0.5  # runs, the fastest of which counts; seconds until the last may start


def time_encoder(model: DecoderOfEncoder) -> tuple[float, int]:
    """Seconds to encode an input, and its positions; 0 seconds where the encoder is shared with the target's."""
    c = model.config
    positions = c.max_source_len if c.hears else min(c.max_source_len, CALIBRATION_SOURCE)
    if model.shares_encoder:
        return 0.0, positions
    bands = c.mel_bins or 0
    values = np.zeros((bands, 2 * positions), np.float32) if c.hears else np.arange(positions) % c.vocab_size
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _SECONDS:
        began = time.perf_counter()
        model.encode(EncoderInput(values))
        times.append(time.perf_counter() - began)
    return min(times), positions
