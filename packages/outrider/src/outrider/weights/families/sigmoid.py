"""Routers by sigmoid, with a bias for the choice alone: GLM-4.5 to 4.7, dots.llm1 and MiniMax M2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import Experts, ModelConfig
from outrider.weights.families.base import COMMON, SILU, Family, Raw, attention_biases, flag, num_layers, words
from outrider.weights.families.mixture import count_key, experts_of, write_plain
from outrider.weights.values import positive, positive_integer

__all__ = ["DOTS1", "GLM4_MOE", "MINIMAX_M2", "dense_first", "router_of"]

_TRAINING = words("output_router_logits router_aux_loss_coef router_jitter_noise")
_SHARED = {f"mlp.shared_expert.{x}_proj": f"mlp.shared_experts.{x}_proj" for x in ("gate", "up", "down")}


def dense_first(raw: Raw, key: str) -> tuple[bool, ...]:
    """For each layer, whether it has experts: all but the first ``raw[key]``; empty: all."""
    dense = positive_integer(raw, key) if raw[key] else 0
    return tuple(layer >= dense for layer in range(num_layers(raw))) if dense else ()


def router_of(raw: Raw, plain: Experts) -> Experts:
    """``plain`` with DeepSeek-V3's router, and an expert of all tokens whose size is to be said.

    Raises ``ModelFormatError`` if groups leave too few experts.
    """
    groups, used = positive_integer(raw, "n_group"), positive_integer(raw, "topk_group")
    if plain.count % groups or used > groups or used * (plain.count // groups) < plain.used:
        raise ModelFormatError(
            f"n_group={groups} with topk_group={used} leaves no {plain.used} of {plain.count} experts to choose"
        )
    return replace(
        plain,
        groups=groups if groups > 1 else 0,
        groups_used=used if groups > 1 else 0,
        shared_gate=False,
        router="sigmoid",
        score_bias=True,
        sum_added=1e-20 if plain.normalised else 0.0,
        scale=positive(raw, "routed_scaling_factor"),
    )


def _deepseek_router(raw: Raw) -> dict[str, Any]:
    """DeepSeek-V3's: sigmoid, a bias for the choice alone, groups, a factor, and an expert of all tokens."""
    layers, normalised = dense_first(raw, "first_k_dense_replace"), flag(raw, "norm_topk_prob")
    count = count_key(raw, "num_local_experts", "n_routed_experts")
    plain = experts_of(raw, count, "moe_intermediate_size", normalised, layers)
    shared = plain.size * positive_integer(raw, "n_shared_experts")
    experts = replace(router_of(raw, plain), shared_size=shared)
    return {"experts": experts if not layers or any(layers) else None}


def _write_deepseek_router(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    return {
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.size,
        "n_shared_experts": experts.shared_size // experts.size,
        "n_group": max(experts.groups, 1),
        "topk_group": max(experts.groups_used, 1),
        "norm_topk_prob": experts.normalised,
        "routed_scaling_factor": experts.scale,
        "first_k_dense_replace": sum(not config.is_sparse(layer) for layer in range(config.num_layers)),
    }


_DEEPSEEK = words(
    "n_routed_experts num_local_experts num_experts_per_tok moe_intermediate_size n_shared_experts n_group topk_group "
    "norm_topk_prob routed_scaling_factor first_k_dense_replace"
)


def _read_glm4(raw: Raw) -> dict[str, Any]:
    bias = flag(raw, "attention_bias")
    return {"attention_bias": bias, "qk_norm": flag(raw, "use_qk_norm")} | _deepseek_router(raw)


GLM4_MOE = Family(
    name="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    defaults=COMMON
    | {
        "vocab_size": 151552,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "attention_bias": False,
        "use_qk_norm": False,
        "moe_intermediate_size": 1408,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_routed_experts": 128,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": True,
    },
    read=_read_glm4,
    write=lambda c: _write_deepseek_router(c) | {"attention_bias": c.attention_bias, "use_qk_norm": c.qk_norm},
    keys=_TRAINING | _DEEPSEEK | words("attention_bias use_qk_norm num_nextn_predict_layers num_mtp_layers"),
    only={"hidden_act": SILU},
    partial=True,
    rename=_SHARED,
    has_draft_head=True,
)


def _read_dots1(raw: Raw) -> dict[str, Any]:
    return attention_biases(raw) | {"qk_norm": True} | _deepseek_router(raw)


DOTS1 = Family(
    name="dots1",
    architecture="Dots1ForCausalLM",
    defaults=COMMON
    | {
        "vocab_size": 152064,
        "hidden_size": 4608,
        "intermediate_size": 10944,
        "num_hidden_layers": 62,
        "max_position_embeddings": 2048,
        "moe_intermediate_size": 1408,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "attention_bias": False,
        "sliding_window": 4096,
        "max_window_layers": 62,
        **dict.fromkeys(("n_routed_experts", "n_shared_experts", "num_experts_per_tok")),
    },
    read=_read_dots1,
    write=lambda c: _write_deepseek_router(c) | {"attention_bias": c.attention_bias},
    keys=_TRAINING | _DEEPSEEK | words("max_window_layers attention_bias"),
    windows="by kind",
    rename=_SHARED,
)


def _read_minimax(raw: Raw) -> dict[str, Any]:
    plain = experts_of(raw, count_key(raw, "num_experts", "num_local_experts"), "intermediate_size", True)
    experts = replace(plain, router="sigmoid", score_bias=True)
    return {"qk_norm": True, "whole_qk_norm": True, "experts": experts}


MINIMAX_M2 = Family(
    name="minimax_m2",
    architecture="MiniMaxM2ForCausalLM",
    defaults=COMMON
    | {
        "vocab_size": 200064,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 196608,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
    },
    read=_read_minimax,
    write=lambda c: write_plain(c, "num_local_experts"),
    keys=_TRAINING | words("num_experts num_local_experts num_experts_per_tok rotary_dim"),
    theta=5e6,
    partial=True,
    rename={
        "mlp.gate.e_score_correction_bias": "block_sparse_moe.e_score_correction_bias",
        "mlp.gate": "block_sparse_moe.gate",
        "mlp.experts.*.gate_proj": "block_sparse_moe.experts.*.w1",
        "mlp.experts.*.down_proj": "block_sparse_moe.experts.*.w2",
        "mlp.experts.*.up_proj": "block_sparse_moe.experts.*.w3",
    },
)
