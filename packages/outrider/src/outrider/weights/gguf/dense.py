"""llama.cpp's keys and tensors of families that differ from Llama in little."""

from __future__ import annotations

from typing import Any

from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.names import GGUFFamily
from outrider.weights.gguf.windows import PATTERN, POST_NORMS, read_windows

__all__ = ["DENSE"]

_EXAONE4_WITH_WINDOWS = 64
"""The number of blocks of the EXAONE 4 that has windows: llama.cpp knows it by this."""


def _seed_oss(arch: str, header: GGUFHeader) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in header.tensors}


def _exaone4(arch: str, header: GGUFHeader) -> dict[str, Any]:
    if header.scalar(f"{arch}.block_count") == _EXAONE4_WITH_WINDOWS:
        return read_windows(arch, header, 4, 4096)
    return {"sliding_window": None}


DENSE: dict[str, GGUFFamily] = {
    "seed_oss": GGUFFamily(
        family="seed_oss", read=_seed_oss, tensors={"post_attention_norm": "post_attention_layernorm"}
    ),
    "ernie4_5": GGUFFamily(family="ernie4_5", interleaved=True),
    "exaone4": GGUFFamily(
        family="exaone4",
        read=_exaone4,
        keys=(PATTERN, "rope.freq_base_swa"),
        tensors=POST_NORMS,
        reads_window=True,
    ),
}
