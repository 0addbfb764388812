"""Whisper's input: the logarithm of power in mel bands, 100 frames per second (Radford et al. 2022, 2.2)."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from outrider_multimodal.speech.audio import HOP, RATE, WINDOW_SECONDS, Samples

_FFT = 400


@cache
def _filters(bins: int) -> Tensor:
    """Slaney's mel filters: [bins, 1 + fft / 2]."""
    from transformers.audio_utils import mel_filter_bank

    filters = mel_filter_bank(
        num_frequency_bins=1 + _FFT // 2,
        num_mel_filters=bins,
        min_frequency=0.0,
        max_frequency=8000.0,
        sampling_rate=RATE,
        norm="slaney",
        mel_scale="slaney",
    )
    return torch.from_numpy(np.ascontiguousarray(filters.T)).float()


def log_mel(samples: Samples, bins: int, *, silence: float = WINDOW_SECONDS) -> NDArray[np.float32]:
    """float32 [bins, frames] of samples at 16 kHz, followed by ``silence`` seconds of zeros.

    Values lie within 8 powers of ten below the loudest of the whole sound, and are scaled to about -1 to 1.
    """
    sound = F.pad(torch.from_numpy(samples), (0, round(silence * RATE)))
    spectrum = torch.stft(sound, _FFT, HOP, window=torch.hann_window(_FFT), return_complex=True)
    power = spectrum[..., :-1].abs() ** 2
    log = torch.log10((_filters(bins) @ power).clamp_min(1e-10))
    mel: NDArray[np.float32] = ((torch.maximum(log, log.max() - 8.0) + 4.0) / 4.0).numpy()
    return mel
