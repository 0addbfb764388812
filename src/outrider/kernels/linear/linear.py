"""Linear layers whose weights are laid out once for the processor that will run them.

Row ``i`` of the output depends on row ``i`` of the input alone, bit for bit, whatever the number of rows: kernels are
called with as many rows as keep that promise on the machine at hand (``batch_invariance``), or block by block
(``brgemm_linear``). Padding a few rows costs nothing on a CPU, where a forward pass is bound by reading weights.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.kernels.linear.batch_invariance import LinearFunction, invariant_range, run_in_range
from outrider.kernels.linear.brgemm_linear import BrgemmLinear, supports_brgemm
from outrider.kernels.processor import has_onednn_bf16


class Linear(Protocol):
    """``y = x Wᵀ + b`` for x: [n, in], with y: [n, out]."""

    out_features: int
    in_features: int

    def __call__(self, x: Tensor) -> Tensor: ...


@cache
def has_packed_kernels(dtype: torch.dtype) -> bool:
    """Whether this build of torch can pack weights of this dtype for oneDNN, and this processor can multiply them."""
    built = bool(torch.backends.mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return built and (dtype != torch.bfloat16 or has_onednn_bf16())


def make_linear(weight: Tensor, bias: Tensor | None, *, int8: bool = False) -> Linear:
    """The fastest layer for ``weight``: [out, in] on its device and in its dtype."""
    if int8:
        return Int8Linear(weight, bias)
    if supports_brgemm(weight):
        return BrgemmLinear(weight, bias)
    if weight.device.type == "cpu" and has_packed_kernels(weight.dtype):
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)


def _packed(weight: Tensor, bias: Tensor | None = None) -> LinearFunction:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    run = torch.ops.mkldnn._linear_pointwise.default
    return lambda x: run(x, packed, bias, "none", [], "")


def _plain(weight: Tensor, bias: Tensor | None = None) -> LinearFunction:
    return lambda x: F.linear(x, weight, bias)


class PackedLinear:
    """oneDNN kernels over a weight reordered once (half the time of ``F.linear`` at one row)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.rows = invariant_range(_packed, weight)
        self._run = _packed(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return run_in_range(self._run, x, self.rows)


class PlainLinear:
    """torch's own layer, for GPUs and where oneDNN cannot multiply the weight's dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.rows = invariant_range(_plain, weight) if weight.device.type == "cpu" else None
        self._run = _plain(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x) if self.rows is None else run_in_range(self._run, x, self.rows)


class Int8Linear:
    """int8 weights with a scale per output, and int8 activations with a scale per row.

    The usual dynamic quantisation takes one scale for all rows of a call, which makes a row depend on its
    neighbours. Here each row is scaled to the full range by itself and handed over with the constant scale 1;
    the products are summed in integers, so a row's result is exact and the same in any batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        scales = (weight.float().abs().amax(dim=1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        with warnings.catch_warnings():  # torch announces that quantised tensors will move to torchao
            warnings.simplefilter("ignore")
            zeros = torch.zeros_like(scales, dtype=torch.int64)
            quantised = torch.quantize_per_channel(weight.float(), scales.double(), zeros, 0, torch.qint8)
            self._weight = torch.ops.quantized.linear_prepack(quantised, None)
        self._bias = bias
        self._run = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
        # Without VNNI the kernel adds pairs of products in 16 bits: 7-bit activations keep them from saturating.
        self._levels = 127 if torch.cpu._is_vnni_supported() else 63

    def __call__(self, x: Tensor) -> Tensor:
        scale = (x.abs().amax(dim=1, keepdim=True).float() / self._levels).clamp_min(torch.finfo(torch.float32).tiny)
        products: Tensor = self._run(x / scale, 1.0, self._levels + 1, self._weight)  # float32 [n, out]
        y = (products * scale).to(x.dtype)
        return y if self._bias is None else y + self._bias
