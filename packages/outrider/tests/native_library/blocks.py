"""Random blocks of every GGUF format: any bits, but scales that are numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_HALVES: dict[str, tuple[int, ...]] = {  # where a block has its scales
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ1_S", "Q1_0", "Q2_0"), (0,)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
_NEW = {"Q1_0": (128, 18), "Q2_0": (64, 18)}
"""Types that the gguf package does not compute."""
_FLOATS: dict[str, Any] = {"F32": np.float32, "F16": np.float16}


def block_inputs(kind: str) -> int:
    """Inputs of a block; floats come in any number."""
    return block_size(kind)[0]


def block_size(kind: str) -> tuple[int, int]:
    """Inputs and bytes of a block."""
    return _NEW[kind] if kind in _NEW else GGML_QUANT_SIZES[GGMLQuantizationType[kind]]


def random_rows(kind: str, rows: int, inputs: int, seed: int = 0) -> Bytes:
    """uint8 [rows, bytes of a row]."""
    rng = np.random.default_rng(seed)
    if kind in _FLOATS:
        return rng.standard_normal((rows, inputs)).astype(_FLOATS[kind]).view(np.uint8)
    if kind == "BF16":
        return (rng.standard_normal((rows, inputs)).astype(np.float32).view(np.uint32) >> 16).astype("<u2").view("u1")
    block, size = block_size(kind)
    data = rng.integers(0, 256, (rows, inputs // block, size), dtype=np.uint8)
    for at in _HALVES.get(kind, ()):
        data[..., at + 1] &= np.where(data[..., at + 1] & 0x7C == 0x7C, 0xBF, 0xFF).astype(np.uint8)
    if kind == "IQ1_M":
        data[..., 55] &= 0xBF  # the upper half of the fourth word of scales: no infinity
    if kind == "MXFP4":
        data[..., 0] = rng.integers(0, 240, data.shape[:2])
    return data.reshape(rows, -1)


def numbers(kind: str, data: Bytes) -> NDArray[np.float32]:
    """What the gguf package computes from rows of blocks; of types that it does not know, what llama.cpp does."""
    if kind in _NEW:
        return _new_numbers(kind, data)
    values: NDArray[np.float32] = dequantize(data.view(_FLOATS.get(kind, np.uint8)), GGMLQuantizationType[kind])
    return values.reshape(len(data), -1)


def _new_numbers(kind: str, data: Bytes) -> NDArray[np.float32]:
    """Q1_0: one bit, for -1 or 1; Q2_0: two bits, from -1 up. The lowest bits come first."""
    blocks = data.reshape(len(data), -1, 18)
    scale = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    bits = np.unpackbits(blocks[..., 2:], axis=-1, bitorder="little").astype(np.float32)
    value = 2 * bits - 1 if kind == "Q1_0" else bits[..., ::2] + 2 * bits[..., 1::2] - 1
    return (scale * value).reshape(len(data), -1)
