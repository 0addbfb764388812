"""The parts of encoder and decoder layers, in the layout of their device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.native.weights import Target
from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig
from outrider_torch.kernels.linear import TorchLinear
from outrider_torch.kernels.native_tensors import pack_tensor
from outrider_torch.kernels.norm import LayerNorm, Norm, RMSNorm
from outrider_torch.kernels.serial import elementwise

Linear = Callable[[Tensor], Tensor]
"""A linear layer: [n, in] -> [n, out]."""


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """One attention block: the projections of queries, keys, values and output."""

    norm: Norm
    query: Linear | None  # None: ``key_value`` contains it, first
    key_value: Linear
    out: Linear


@dataclass(frozen=True, eq=False)
class Layer:
    """A decoder layer; without ``cross``, an encoder layer."""

    attention: AttentionWeights
    cross: AttentionWeights | None
    mlp_norm: Norm
    inner: Linear
    down: Linear


class Parts:
    """Makes norms and linear layers of tensors by their canonical names."""

    def __init__(
        self,
        config: EncoderDecoderConfig,
        tensors: Mapping[str, Tensor],
        *,
        device: torch.device,
        dtype: torch.dtype,
        native: Target | None,
    ) -> None:
        """``native``: the format of the decoder's matrices in the native library; None: torch, in ``dtype``."""
        self._config, self._tensors, self._device, self._dtype, self._native = config, tensors, device, dtype, native
        self.nbytes = 0

    def get(self, name: str) -> Tensor:
        tensor = self._tensors[name].to(device=self._device, dtype=self._dtype, copy=True)
        self.nbytes += tensor.nbytes
        return tensor

    def has(self, name: str) -> bool:
        return name in self._tensors

    def norm(self, name: str) -> Norm:
        weight, eps = self.get(f"{name}.weight"), self._config.rms_norm_eps
        return LayerNorm(weight, self.get(f"{name}.bias"), eps) if self._config.layer_norm else RMSNorm(weight, eps)

    def linear(self, *names: str, whole: bool = False) -> Linear:
        """Fused projections of one input. ``whole``: all rows of a source at once, whose bits depend on no batch."""
        weight = torch.cat([self._tensors[f"{name}.weight"].float() for name in names])
        return self.matrix(weight, self._bias(names, weight), whole=whole)

    def matrix(self, weight: Tensor, bias: Tensor | None = None, *, whole: bool = False) -> Linear:
        """A linear layer of weight: [out, in]."""
        if self._native is not None and not whole:
            packed = pack_tensor(weight, self._native, bias=bias)
            self.nbytes += packed.nbytes
            return packed
        weight = weight.to(device=self._device, dtype=self._dtype, copy=True)
        bias = None if bias is None else bias.to(weight)
        self.nbytes += weight.nbytes
        return (lambda x: F.linear(x, weight, bias)) if whole else TorchLinear(weight, bias)

    def _bias(self, names: tuple[str, ...], weight: Tensor) -> Tensor | None:
        """The fused bias of the projections, zero for one without a bias (Whisper's keys)."""
        if not any(self.has(f"{name}.bias") for name in names):
            return None
        parts = [
            self._tensors[f"{name}.bias"].float()
            if self.has(f"{name}.bias")
            else torch.zeros(len(self._tensors[f"{name}.weight"]))
            for name in names
        ]
        return torch.cat(parts).to(weight.device)

    def layer(self, stack: str, index: int) -> Layer:
        """Layer ``index`` of ``encoder`` or ``decoder``."""
        name, whole = f"{stack}.layers.{index}.", stack == "encoder"
        own = name + "self_attn."
        cross = name + "cross_attn."
        gated = self.has(f"{name}gate.weight")
        return Layer(
            attention=AttentionWeights(
                norm=self.norm(name + "self_attn_norm"),
                query=None,
                key_value=self.linear(*(own + x for x in "qkv"), whole=whole),
                out=self.linear(own + "out", whole=whole),
            ),
            cross=None
            if whole
            else AttentionWeights(
                norm=self.norm(name + "cross_attn_norm"),
                query=self.linear(cross + "q"),
                key_value=self.linear(cross + "k", cross + "v", whole=True),
                out=self.linear(cross + "out"),
            ),
            mlp_norm=self.norm(name + "mlp_norm"),
            inner=self.linear(*((name + "gate", name + "up") if gated else (name + "up",)), whole=whole),
            down=self.linear(name + "down", whole=whole),
        )


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def _activate(config: EncoderDecoderConfig, inner: Tensor) -> Tensor:
    """The activation between the two matrices of an MLP, of inner: [n, d or 2 d] (gated)."""
    gate, up = inner.chunk(2, dim=-1) if config.gated else (inner, None)
    out = elementwise(_FUNCTIONS[config.activation_function], gate)
    return out if up is None else out * up


def mlp(config: EncoderDecoderConfig, layer: Layer, x: Tensor) -> Tensor:
    """The MLP block of a layer, of x: [n, d]."""
    return layer.down(_activate(config, layer.inner(x)))
