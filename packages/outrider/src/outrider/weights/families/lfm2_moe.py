"""LFM2 with experts, chosen by sigmoid and a bias, behind dense layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.weights.families.base import Family, Raw, flag, words
from outrider.weights.families.lfm2 import LFM2, LFM2_NAMES, read_lfm2, write_lfm2
from outrider.weights.families.mixture import experts_of
from outrider.weights.families.sigmoid import dense_first
from outrider.weights.values import positive

__all__ = ["LFM2_MOE"]


def _read(raw: Raw) -> dict[str, Any]:
    if raw.get("layer_types") is None:
        raise ModelFormatError("layer_types is missing, which names the kind of each layer: download the model again")
    layers, normalised = dense_first(raw, "num_dense_layers"), flag(raw, "norm_topk_prob")
    experts = replace(
        experts_of(raw, "num_experts", "moe_intermediate_size", normalised, layers),
        router="sigmoid",
        score_bias=flag(raw, "use_expert_bias"),
        sum_added=1e-6 if normalised else 0.0,
        scale=positive(raw, "routed_scaling_factor"),
    )
    return read_lfm2(raw) | {"experts": experts if not layers or any(layers) else None}


def _write(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    return write_lfm2(config) | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.size,
        "norm_topk_prob": experts.normalised,
        "use_expert_bias": experts.score_bias,
        "routed_scaling_factor": experts.scale,
        "num_dense_layers": sum(not config.is_sparse(layer) for layer in range(config.num_layers)),
    }


_ADJUSTED = words("block_multiple_of block_ffn_dim_multiplier block_auto_adjust_ff_dim")

LFM2_MOE = Family(
    name="lfm2_moe",
    architecture="Lfm2MoeForCausalLM",
    defaults={key: value for key, value in LFM2.defaults.items() if key not in _ADJUSTED}
    | {
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "num_experts_per_tok": 4,
        "num_experts": 32,
        "use_expert_bias": True,
        "routed_scaling_factor": 1.0,
        "norm_topk_prob": True,
    },
    read=_read,
    write=_write,
    keys=words(
        "conv_bias conv_L_cache tie_embedding moe_intermediate_size num_dense_layers num_experts_per_tok num_experts "
        "use_expert_bias routed_scaling_factor norm_topk_prob output_router_logits"
    ),
    only={},
    eps=LFM2.eps,
    windows=LFM2.windows,
    theta=LFM2.theta,
    rename=LFM2_NAMES
    | {
        "mlp.gate.e_score_correction_bias": "feed_forward.expert_bias",
        "mlp.gate": "feed_forward.gate",
        "mlp.experts.*.gate_proj": "feed_forward.experts.*.w1",
        "mlp.experts.*.up_proj": "feed_forward.experts.*.w3",
        "mlp.experts.*.down_proj": "feed_forward.experts.*.w2",
    },
    rename_top=LFM2.rename_top,
)
