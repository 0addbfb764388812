"""Sliding windows in GGUF files, as the keys of ``config.json``."""

from __future__ import annotations

from typing import Any

import numpy as np

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.families.base import num_layers
from outrider.weights.gguf.header import GGUFHeader

__all__ = ["PATTERN", "POST_NORMS", "read_windows"]

PATTERN = "attention.sliding_window_pattern"
POST_NORMS = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
"""Names of the norms behind a layer's blocks."""


def read_windows(arch: str, header: GGUFHeader, every: int, otherwise: int = 0) -> dict[str, Any]:
    """The windowed layers: those of a list, or all but every n-th."""
    layers, window = (
        num_layers({"num_hidden_layers": header.scalar(f"{arch}.block_count")}),
        header.scalar(f"{arch}.attention.sliding_window", otherwise),
    )
    key = f"{arch}.{PATTERN}"
    said = header.metadata.get(key, every)
    if isinstance(said, list | np.ndarray):
        windowed = [bool(n) for n in said][:layers] + [False] * (layers - len(said))
    elif isinstance(said, int) and said >= 0:
        windowed = [said == 0 or i % said < said - 1 for i in range(layers)]
    else:
        raise ModelFormatError(f"{key}={shown(said)} is no number of layers: download the file again")
    if window == 0:
        windowed = [False] * layers
    kinds = ["sliding_attention" if on else "full_attention" for on in windowed]
    return {"layer_types": kinds, "sliding_window": window}
