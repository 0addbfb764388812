"""Linear layers as products of small blocks, called by our own loop: bfloat16 on processors with matrix tiles (AMX).

torch prepares every call of a layer anew, which for a small model's layers takes as long as a quarter of the product.
Its kernel for one block (oneDNN's brgemm, which torch exports) needs no preparation. A block holds the whole sum of its
outputs, so a row's bits are the same for any number of rows.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from outrider.models.compiled import kernels
from outrider.models.processor import has_bf16_tiles

_BLOCK = 64  # as in kernels.c
_WIDEST = 1536  # inputs; beyond, oneDNN's own order of blocks is faster on prompts, and preparing a call is nothing
_PRODUCT = "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb"  # at::native::cpublas::brgemm
_RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb"


@cache
def _torch_functions() -> tuple[int, int] | None:
    """Addresses of torch's product of blocks and of what ends a series of them, if this build has them."""
    names = ("libtorch_cpu.so", "libtorch_cpu.dylib")
    path = next((p for name in names if (p := Path(torch.__file__).parent / "lib" / name).exists()), None)
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    try:
        product, release = (ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in (_PRODUCT, _RELEASE))
    except AttributeError:
        return None
    assert product is not None
    assert release is not None
    return product, release


def suits(weight: Tensor) -> bool:
    """Whether a layer of this weight [out, in] can be, and is better, multiplied block by block."""
    out_features, in_features = weight.shape
    fits = out_features % _BLOCK == 0 and in_features % 2 == 0 and in_features <= _WIDEST
    bf16 = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return fits and bf16 and has_bf16_tiles() and kernels() is not None and _torch_functions() is not None


class BlockedLinear:
    """``y = x Wᵀ + b`` over a weight laid out in blocks of outputs; see ``suits``."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        pairs = weight.reshape(self.out_features // _BLOCK, _BLOCK, self.in_features // 2, 2)
        self._weight = pairs.transpose(1, 2).contiguous()  # [out / _BLOCK, in / 2, _BLOCK, 2]
        self._bias = None if bias is None else bias.contiguous()
        library, functions = kernels(), _torch_functions()
        assert library is not None
        assert functions is not None
        self._run, self._functions = library.linear, functions
        self._packed = self._weight.data_ptr(), None if self._bias is None else self._bias.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        rows = x.shape[0]
        y = x.new_empty(rows, self.out_features)
        self._run(
            *self._functions, rows, self.in_features, self.out_features, x.data_ptr(), *self._packed, y.data_ptr()
        )
        return y
