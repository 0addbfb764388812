"""The weights of a model's layers, in torch's layout."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outrider.models.config import ModelConfig
from outrider.models.layer_kinds import kind_of
from outrider_torch.kernels.layers import Dimensions, LayerWeights
from outrider_torch.kernels.linear import TorchLinear
from outrider_torch.kernels.mlp import ExpertWeights, MLPWeights
from outrider_torch.kernels.native_tensors import as_tensors
from outrider_torch.kernels.norm import LayerNorm, Norm, RMSNorm
from outrider_torch.kernels.rope import pair_rows


class TorchWeights:
    """Makes norms and linear layers on a device, of tensors by their canonical names."""

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, Tensor], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config, self._tensors, self._dtype, self._device = config, tensors, dtype, device

    @property
    def dimensions(self) -> Dimensions:
        c = self._config
        return Dimensions(
            heads=c.num_heads,
            kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            activation=c.activation,
            residual_scale=c.residual_scale,
            attention_scale=c.attention_scale,
            attention_cap=c.attention_cap,
            clamped_swiglu=c.clamped_swiglu,
        )

    def get(self, name: str) -> Tensor:
        tensor: Tensor = as_tensors(self._tensors[name])
        return tensor.to(device=self._device, dtype=self._dtype)

    def norm(self, name: str) -> Norm:
        weight = self.get(f"{name}.weight").clone()  # releases the mapped file
        if self._config.layer_norm:
            return LayerNorm(weight, self.get(f"{name}.bias").clone(), self._config.rms_norm_eps)
        return RMSNorm(weight, self._config.rms_norm_eps)

    def layer(self, i: int) -> LayerWeights:
        c, name = self._config, f"model.layers.{i}."
        attention = name + "self_attn."
        q_norm, k_norm = (self._head_norm(f"{attention}{x}_norm.weight", x) if c.qk_norm else None for x in "qk")
        return LayerWeights(
            index=i,
            attention_norm=None if c.norms == "after" else self.norm(name + "input_layernorm"),
            qkv=self._linear(*(f"{attention}{x}_proj" for x in "qkv"), heads={0: c.num_heads, 1: c.num_kv_heads}),
            q_norm=q_norm,
            k_norm=k_norm,
            out=self._linear(attention + "o_proj"),
            mlp_norm=None if c.norms == "after" else self.norm(name + "post_attention_layernorm"),
            mlp=self._experts(name + "mlp") if c.is_sparse(i) else self._mlp(name + "mlp"),
            kind=kind_of(c, i),
            whole_qk_norm=c.whole_qk_norm,
            rotated_qk_norm=c.rotated_qk_norm,
            sinks=self.get(attention + "sinks").clone() if c.attention_sinks else None,
            attention_output_norm=None if c.norms == "before" else self.norm(name + "attention_output_norm"),
            mlp_output_norm=None if c.norms == "before" else self.norm(name + "mlp_output_norm"),
        )

    def _head_norm(self, name: str, which: str) -> RMSNorm:
        heads = self._config.num_heads if which == "q" else self._config.num_kv_heads
        return RMSNorm(pair_rows(self.get(name), heads if self._config.whole_qk_norm else 1), self._config.rms_norm_eps)

    def _mlp(self, name: str) -> MLPWeights:
        gated = self._config.gated
        inner = (f"{name}.gate_proj", f"{name}.up_proj") if gated else (f"{name}.up_proj",)
        return MLPWeights(self._linear(*inner), self._linear(f"{name}.down_proj"), gated)

    def _experts(self, name: str) -> ExpertWeights:
        experts = self._config.experts
        assert experts is not None
        mlps = tuple(self._mlp(f"{name}.experts.{e}") for e in range(experts.count))
        return ExpertWeights(
            of=experts,
            router=self._linear(f"{name}.gate"),
            experts=mlps,
            score_bias=self._floats(f"{name}.gate.e_score_correction_bias") if experts.score_bias else None,
            shared=self._mlp(f"{name}.shared_expert") if experts.shared_size else None,
            shared_gate=self._shared_gate(name) if experts.shared_size and experts.shared_gate else None,
        )

    def _shared_gate(self, name: str) -> TorchLinear:
        return self._linear(f"{name}.shared_expert_gate")

    def _floats(self, name: str) -> Tensor:
        tensor: Tensor = as_tensors(self._tensors[name])
        return tensor.to(device=self._device, dtype=torch.float32, copy=True)

    def _linear(self, *names: str, heads: Mapping[int, int] | None = None) -> TorchLinear:
        """Fuse projections that share their input. ``heads``: of the projections whose rows are rotary pairs."""
        rows = [(name, (heads or {}).get(i)) for i, name in enumerate(names)]
        weights = [self._rows(f"{name}.weight", h) for name, h in rows]
        biased = f"{names[0]}.bias" in self._tensors
        biases = [self._rows(f"{name}.bias", h) for name, h in rows] if biased else []
        return TorchLinear(torch.cat(weights), torch.cat(biases) if biases else None)

    def _rows(self, name: str, heads: int | None) -> Tensor:
        return pair_rows(self.get(name), heads) if heads else self.get(name)
