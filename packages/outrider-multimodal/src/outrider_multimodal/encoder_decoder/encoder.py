"""The encoder: all positions of one source at once, with attention in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig
from outrider_multimodal.encoder_decoder.inputs import EncoderInput
from outrider_multimodal.encoder_decoder.relative import RelativeBias
from outrider_multimodal.encoder_decoder.weights import AttentionWeights, Parts, mlp
from outrider_torch.kernels.norm import Norm


class Encoder:
    """Runs once per input, for every reader. Models with equal encoders share one object."""

    def __init__(self, config: EncoderDecoderConfig, tensors: Mapping[str, Tensor], parts: Parts) -> None:
        """``tensors``: by their canonical names; kept for comparison with another model's."""
        self.config = config
        self._tensors = tensors
        self._tensor_names = sorted(name for name in tensors if name.startswith("encoder."))
        names = ("encoder.conv1", "encoder.conv2") if config.hears else ()
        self._convolutions = [(parts.get(f"{name}.weight"), parts.get(f"{name}.bias")) for name in names]
        self._embedding = None if config.hears else parts.get("encoder.embed.weight")
        table = "encoder.positions.weight"
        self._positions = parts.get(table) if config.positions == "learned" else None
        self._embedding_norm = parts.norm("encoder.embedding_norm") if config.embedding_norm else None
        self._layers = [parts.layer("encoder", i) for i in range(config.encoder_layers)]
        self._final_norm = parts.norm("encoder.norm") if config.final_norm else None
        self._bias = None
        if config.positions == "relative":
            self._bias = RelativeBias(
                parts.get("encoder.relative.weight"), two_sided=True, longest=config.relative_distance
            )

    def __call__(self, given: EncoderInput) -> Tensor:
        """The encoder's output for the decoder, float [n, d]; computed at the first call."""
        return given.computed(self, lambda: self._encode(torch.as_tensor(given.values)))

    def same_as(self, other: Encoder) -> bool:
        """Whether both encoders have equal constants and weights."""
        return (
            _constants(self.config) == _constants(other.config)
            and self._tensor_names == other._tensor_names
            and all(torch.equal(self._tensors[name], other._tensors[name]) for name in self._tensor_names)
        )

    @torch.inference_mode()
    def _encode(self, values: Tensor) -> Tensor:
        c = self.config
        x = self._embed(values)
        bias = None
        if self._bias is not None:
            bias = self._bias(torch.arange(len(x), device=x.device), len(x))
        for layer in self._layers:
            x = self._add(x, layer.attention.norm, partial(self._attend, layer.attention, bias))
            x = self._add(x, layer.mlp_norm, partial(mlp, c, layer))
        return x if self._final_norm is None else self._final_norm(x)

    def _embed(self, values: Tensor) -> Tensor:
        c = self.config
        if self._embedding is None:
            weight = self._convolutions[0][0]
            x = values.to(weight)[None]
            for stride, (kernel, bias) in enumerate(self._convolutions, start=1):
                x = F.gelu(F.conv1d(x, kernel, bias, stride=stride, padding=1))
            x = x[0].T
        else:
            x = F.embedding(values.to(self._embedding.device), self._embedding) * c.embedding_scale
        if self._positions is not None:
            x = x + self._positions[c.position_offset : c.position_offset + len(x)]
        return x if self._embedding_norm is None else self._embedding_norm(x)

    def _add(self, x: Tensor, norm: Norm, block: Callable[[Tensor], Tensor]) -> Tensor:
        """A block's residual connection, with the norm before or after it as the model has it."""
        return norm(x + block(x)) if self.config.norms == "after" else x + block(norm(x))

    def _attend(self, weights: AttentionWeights, bias: Tensor | None, x: Tensor) -> Tensor:
        c = self.config
        q, k, v = (t.view(len(x), c.encoder_heads, -1).transpose(0, 1)[None] for t in weights.key_value(x).chunk(3, -1))
        mask = None if bias is None else bias[None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=c.attention_scale)
        return weights.out(out[0].transpose(0, 1).reshape(len(x), -1))


def _constants(config: EncoderDecoderConfig) -> tuple[object, ...]:
    c = config
    return (
        *(c.encoder_layers, c.encoder_heads, c.head_dim, c.activation_function, c.norms, c.layer_norm, c.gated),
        *(c.positions, c.position_offset, c.relative_distance, c.embedding_scale, c.rms_norm_eps, c.attention_scale),
        *(c.embedding_norm, c.final_norm),
    )
