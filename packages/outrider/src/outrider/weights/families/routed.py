"""Qwen2-MoE, OLMoE and Granite 3 MoE: mixtures of experts that differ little from Qwen3-MoE's or Granite's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.models.config import ModelConfig
from outrider.weights.families.base import (
    COMMON,
    SILU,
    Family,
    Raw,
    attention_biases,
    flag,
    kinds_of,
    layer_kinds,
    num_layers,
    words,
)
from outrider.weights.families.granite import GRANITE
from outrider.weights.families.mixture import QWEN3_MOE, count_key, experts_of, write_plain
from outrider.weights.values import positive_integer

__all__ = ["GRANITE_MOE", "OLMOE", "QWEN2_MOE"]

_TRAINING = words("output_router_logits router_aux_loss_coef router_jitter_noise")


def _windows(raw: Raw) -> dict[str, Any]:
    """Every other of the first ``max_window_layers`` layers has it, where the file does not name their kinds."""
    used, kinds = flag(raw, "use_sliding_window"), layer_kinds(raw)
    full = raw["max_window_layers"] and positive_integer(raw, "max_window_layers")
    if kinds is None:
        windowed = tuple(used and i % 2 == 0 and i < full for i in range(num_layers(raw)))
    else:
        windowed = tuple(kind != "full_attention" for kind in kinds)
    if not any(windowed):
        return {}
    window = positive_integer({"sliding_window": raw["sliding_window"] if used else 0}, "sliding_window")
    return {"sliding_window": window, "window_layers": windowed}


def _read_qwen2(raw: Raw) -> dict[str, Any]:
    own = {key: value for key, value in raw.items() if key != "num_local_experts"}
    experts = QWEN3_MOE.read(own)["experts"]
    if experts is not None:
        experts = replace(experts, shared_size=positive_integer(raw, "shared_expert_intermediate_size"))
    return {"attention_bias": flag(raw, "qkv_bias"), "experts": experts} | _windows(raw)


def _write_qwen2(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    own = {"shared_expert_intermediate_size": experts.shared_size, "qkv_bias": config.attention_bias}
    window = {"use_sliding_window": config.sliding_window is not None, "layer_types": kinds_of(config)}
    return QWEN3_MOE.write(config) | own | window


QWEN2_MOE = Family(
    name="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    defaults=COMMON
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 151936,
        "intermediate_size": 5632,
        "max_position_embeddings": 32768,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4,
        "num_experts": 60,
        "norm_topk_prob": False,
        "mlp_only_layers": None,
        "qkv_bias": True,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    read=_read_qwen2,
    write=_write_qwen2,
    keys=_TRAINING
    | words(
        "decoder_sparse_step moe_intermediate_size shared_expert_intermediate_size num_experts_per_tok num_experts "
        "norm_topk_prob mlp_only_layers max_window_layers qkv_bias"
    ),
    windows="of its own",
)


def _read_olmoe(raw: Raw) -> dict[str, Any]:
    count = count_key(raw, "num_local_experts", "num_experts")
    experts = experts_of(raw, count, "intermediate_size", flag(raw, "norm_topk_prob"))
    return attention_biases(raw) | {"qk_norm": True, "whole_qk_norm": True, "experts": experts}


OLMOE = Family(
    name="olmoe",
    architecture="OlmoeForCausalLM",
    defaults=COMMON
    | {
        "vocab_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "num_experts_per_tok": 8,
        "num_experts": 64,
        "norm_topk_prob": False,
    },
    read=_read_olmoe,
    write=lambda c: (
        write_plain(c, "num_experts")
        | {"norm_topk_prob": c.experts is not None and c.experts.normalised, "attention_bias": c.attention_bias}
    ),
    keys=_TRAINING | words("num_experts num_local_experts num_experts_per_tok norm_topk_prob attention_bias"),
    only={"hidden_act": SILU, "clip_qkv": (None,)},
)


def _read_granite(raw: Raw) -> dict[str, Any]:
    experts = replace(experts_of(raw, "num_local_experts", "intermediate_size", True), router="softmax_of_used")
    return GRANITE.read({**raw, "mlp_bias": False}) | {"experts": experts}


GRANITE_MOE = Family(
    name="granitemoe",
    architecture="GraniteMoeForCausalLM",
    defaults={key: value for key, value in GRANITE.defaults.items() if key != "mlp_bias"}
    | {"num_local_experts": 8, "num_experts_per_tok": 2},
    read=_read_granite,
    write=lambda c: GRANITE.write(c) | write_plain(c, "num_local_experts"),
    keys=GRANITE.keys | _TRAINING | words("num_local_experts num_experts_per_tok"),
    rename={
        "mlp.gate": "block_sparse_moe.router.layer",
        "mlp.experts.*.gate_proj": "block_sparse_moe.input_linear",
        "mlp.experts.*.up_proj": "block_sparse_moe.input_linear",
        "mlp.experts.*.down_proj": "block_sparse_moe.output_linear",
    },
)
