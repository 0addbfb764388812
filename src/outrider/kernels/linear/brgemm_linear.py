"""Linear layers as products of small blocks, called by our own loop: bfloat16 on processors with matrix tiles (AMX).

torch prepares every call of a layer anew, which for a small model's layers takes as long as a quarter of the product.
Its kernel for one block (oneDNN's brgemm, which torch exports) needs no preparation. A block holds the whole sum of its
outputs, so a row's bits are the same for any number of rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.kernels.native import LinearStruct, brgemm_functions, native_library

_BLOCK = 64  # as in kernels.c
_WIDEST = 1536  # inputs; beyond, oneDNN's own order of blocks is faster on prompts, and preparing a call is nothing


def supports_brgemm(weight: Tensor) -> bool:
    """Whether a layer of this weight [out, in] can be, and is better, multiplied block by block."""
    out_features, in_features = weight.shape
    fits = out_features % _BLOCK == 0 and in_features % 2 == 0 and in_features <= _WIDEST
    bf16 = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return fits and bf16 and brgemm_functions() is not None


class BrgemmLinear:
    """``y = x Wᵀ + b`` over a weight laid out in blocks of outputs; see ``supports_brgemm``."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        pairs = weight.reshape(self.out_features // _BLOCK, _BLOCK, self.in_features // 2, 2)
        self._weight = pairs.transpose(1, 2).contiguous()  # [out / _BLOCK, in / 2, _BLOCK, 2]
        self._bias = None if bias is None else bias.contiguous()
        library, functions = native_library(), brgemm_functions()
        assert library is not None
        assert functions is not None
        self._run, self._functions = library.linear, functions
        weight_at, bias_at = self._weight.data_ptr(), None if self._bias is None else self._bias.data_ptr()
        self._packed = weight_at, bias_at
        self.described = LinearStruct(weight_at, bias_at, self.in_features, self.out_features)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        rows = x.shape[0]
        y = x.new_empty(rows, self.out_features)
        self._run(
            *self._functions, rows, self.in_features, self.out_features, x.data_ptr(), *self._packed, y.data_ptr()
        )
        return y
