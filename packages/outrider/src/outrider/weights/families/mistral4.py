"""Mistral 4: DeepSeek V3's layers with a router by softmax, and Ministral's factors on queries by position."""

from __future__ import annotations

from typing import Any

from outrider.models.config import ModelConfig
from outrider.weights.families.base import COMMON, SILU, Family, Raw, flag, words
from outrider.weights.families.deepseek import (
    EXPERT_KEYS,
    EXPERT_NAMES,
    layers_behind_dense,
    num_experts,
    read_experts,
    read_groups,
    write_experts,
)
from outrider.weights.families.latent import LATENT_DEFAULTS, read_attention
from outrider.weights.families.ministral3 import read_temperature, write_temperature

__all__ = ["MISTRAL4"]

_ROPE = {
    **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 128.0, "original_max_position_embeddings": 8192},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1},
}


def _read(raw: Raw) -> dict[str, Any]:
    sparse = layers_behind_dense(raw)
    chosen: dict[str, Any] = {"normalised": flag(raw, "norm_topk_prob"), "sum_added": 1e-20}
    if any(sparse):
        chosen |= read_groups(raw, num_experts(raw))
    return read_attention(raw) | read_experts(raw, sparse, **chosen) | read_temperature(raw)


def _write(config: ModelConfig) -> dict[str, Any]:
    written = write_experts(config) | {"norm_topk_prob": config.experts is None or config.experts.normalised}
    return written | write_temperature(config, written["rope_scaling"] or {})


MISTRAL4 = Family(
    name="mistral4",
    architecture="Mistral4ForCausalLM",
    defaults={
        **COMMON,
        **LATENT_DEFAULTS,
        "vocab_size": 131072,
        "intermediate_size": 12288,
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 1048576,
        "kv_lora_rank": 256,
        "q_lora_rank": 1024,
        "qk_nope_head_dim": 64,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 0,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "topk_group": 1,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 2048,
        "rope_parameters": _ROPE,
    },
    read=_read,
    write=_write,
    keys=EXPERT_KEYS | words("first_k_dense_replace norm_topk_prob"),
    only={"hidden_act": SILU, "rope_interleave": (True,)},
    partial=True,
    rename=EXPERT_NAMES,
    interleaved=True,
    may_stack_experts=True,
)
