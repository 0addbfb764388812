"""Llama 4 in GGUF files. llama.cpp knows much of it by the architecture alone: chunks, temperatures, norms."""

from __future__ import annotations

from typing import Any

from outrider.errors import ModelFormatError
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.names import GGUFFamily
from outrider.weights.gguf.routed import COUNTS
from outrider.weights.gguf.windows import PATTERN, read_windows

__all__ = ["LLAMA4"]

_CHUNK = 8192
_WITHOUT_NORMS = 128
"""The number of experts of the model without norms on q and k, Maverick: llama.cpp knows it by this."""
_STEP, _WINDOW, _WINDOW_BASE = "interleave_moe_layer_step", "attention.sliding_window", "rope.freq_base_swa"


def _read(arch: str, header: GGUFHeader) -> dict[str, Any]:
    get = header.scalar
    if get(f"{arch}.{_WINDOW}", _CHUNK) == 0:
        raise ModelFormatError(f"{arch}.{_WINDOW}=0 is not supported: llama.cpp does not rotate in its last layer")
    theta, own = get(f"{arch}.rope.freq_base", 10000.0), get(f"{arch}.{_WINDOW_BASE}")
    if own is not None and own != theta:
        raise ModelFormatError(f"{arch}.{_WINDOW_BASE}={own} is not supported: only rope.freq_base={theta} is")
    count, used, size = (get(f"{arch}.{key}") for key in COUNTS)
    kinds = read_windows(arch, header, 4, _CHUNK)["layer_types"]
    return {
        "num_local_experts": count,
        "num_experts_per_tok": used,
        "intermediate_size": size,
        "intermediate_size_mlp": get(f"{arch}.feed_forward_length"),
        "interleave_moe_layer_step": get(f"{arch}.{_STEP}"),
        "no_rope_layer_interval": 4,
        "attention_chunk_size": _CHUNK,
        "layer_types": [kind.replace("sliding", "chunked") for kind in kinds],
        "use_qk_norm": count != _WITHOUT_NORMS,
    }


LLAMA4 = GGUFFamily(
    family="llama4_text",
    interleaved=True,
    read=_read,
    keys=(*COUNTS, _STEP, _WINDOW, PATTERN, _WINDOW_BASE),
    reads_window=True,
)
