"""ERNIE 4.5: rotary pairs are adjacent; biases everywhere or nowhere; with experts or without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.models.config import ModelConfig
from outrider.weights.families.base import COMMON, SILU, Family, Raw, flag, num_layers, words
from outrider.weights.families.mixture import count_key, experts_of
from outrider.weights.values import positive, positive_integer

__all__ = ["ERNIE4_5", "ERNIE4_5_MOE"]


def _read(raw: Raw) -> dict[str, Any]:
    return dict.fromkeys(("attention_bias", "output_bias", "mlp_bias"), flag(raw, "use_bias"))


ERNIE4_5 = Family(
    name="ernie4_5",
    architecture="Ernie4_5ForCausalLM",
    defaults=COMMON
    | {
        "hidden_size": 1024,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 103424,
        "intermediate_size": 3072,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "use_bias": False,
    },
    read=_read,
    write=lambda config: {"use_bias": config.mlp_bias},
    keys=words("use_bias"),
    theta=5e5,
    interleaved=True,
)


def _index(raw: Raw, key: str) -> int:
    """``raw[key]``, the number of a layer, of which 0 is the first."""
    return positive_integer(raw, key) if raw[key] else 0


def _sparse(raw: Raw) -> tuple[bool, ...]:
    """For each layer, whether it has experts: every n-th one between two that are named."""
    layers, every = num_layers(raw), positive_integer(raw, "moe_layer_interval")
    first = _index(raw, "moe_layer_start_index")
    last = layers - 1 if raw["moe_layer_end_index"] == -1 else _index(raw, "moe_layer_end_index")
    return tuple((i + 1) % every == 0 and first <= i <= last for i in range(layers))


def _read_moe(raw: Raw) -> dict[str, Any]:
    sparse = _sparse(raw)
    used = count_key(raw, "num_experts_per_tok", "moe_k")
    count = count_key(raw, "num_experts", "moe_num_experts")
    plain = experts_of(raw, count, "moe_intermediate_size", True, () if all(sparse) else sparse, used)
    shared = positive_integer(raw, "moe_num_shared_experts") if raw["moe_num_shared_experts"] else 0
    experts = replace(
        plain,
        shared_size=plain.size * shared,
        shared_gate=False,
        score_bias=True,
        least_sum=positive(raw, "moe_norm_min"),
    )
    return {"experts": experts if any(sparse) else None}


def _write_moe(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    sparse = [i for i in range(config.num_layers) if config.is_sparse(i)]
    every = sparse[1] - sparse[0] if len(sparse) > 1 else 1
    return {
        "moe_num_experts": experts.count,
        "moe_k": experts.used,
        "moe_intermediate_size": experts.size,
        "moe_num_shared_experts": experts.shared_size // experts.size,
        "moe_layer_start_index": sparse[0],
        "moe_layer_end_index": sparse[-1],
        "moe_layer_interval": every,
        "moe_norm_min": experts.least_sum,
    }


ERNIE4_5_MOE = Family(
    name="ernie4_5_moe",
    architecture="Ernie4_5_MoeForCausalLM",
    defaults=COMMON
    | {
        "vocab_size": 103424,
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "num_hidden_layers": 28,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "moe_norm_min": 1e-12,
    },
    read=_read_moe,
    write=_write_moe,
    keys=words(
        "moe_k num_experts_per_tok moe_num_experts num_experts moe_intermediate_size moe_num_shared_experts "
        "moe_layer_start_index moe_layer_end_index moe_layer_interval moe_norm_min output_router_logits "
        "router_aux_loss_coef"
    ),
    only={"hidden_act": SILU, "use_bias": (False, None)},
    theta=5e5,
    interleaved=True,
    rename={
        "mlp.gate.e_score_correction_bias": "mlp.moe_statics.e_score_correction_bias",
        **{f"mlp.shared_expert.{x}_proj": f"mlp.shared_experts.{x}_proj" for x in ("gate", "up", "down")},
    },
)
