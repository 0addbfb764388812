"""Hunyuan, dense or not: norms on q and k behind the rotation, whose base may grow by a power of ``alpha``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.utils.json_files import shown
from outrider.weights.families.base import COMMON, SILU, Family, Raw, biases, num_layers, words
from outrider.weights.families.mixture import count_key, experts_of

__all__ = ["HUNYUAN", "HUNYUAN_MOE"]

HUNYUAN = Family(
    name="hunyuan_v1_dense",
    architecture="HunYuanDenseV1ForCausalLM",
    defaults=COMMON
    | {
        "head_dim": None,
        "vocab_size": 290943,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
    },
    read=lambda raw: biases(raw) | {"mlp_bias": False, "qk_norm": True, "rotated_qk_norm": True},
    write=lambda config: {"attention_bias": config.attention_bias},
    keys=words("attention_bias"),
    grows_base=True,
    rename={"self_attn.q_norm": "self_attn.query_layernorm", "self_attn.k_norm": "self_attn.key_layernorm"},
)


def _used(raw: Raw) -> Any:
    """The experts that a token is computed by: one number, or the same for each layer."""
    key = count_key(raw, "num_experts_per_tok", "moe_topk")
    used, layers = raw[key], num_layers(raw)
    if not isinstance(used, list):
        return used
    if len(used) < layers or any(each != used[0] for each in used[:layers]):
        raise ModelFormatError(f"{key}={shown(used)} is not supported: only one number for all {layers} layers is")
    return used[0]


def _read_moe(raw: Raw) -> dict[str, Any]:
    own = {**raw, "num_experts_per_tok": _used(raw)}
    experts = experts_of(own, count_key(raw, "num_local_experts", "num_experts"), "intermediate_size", True)
    return HUNYUAN.read(raw) | {"experts": replace(experts, shared_size=experts.size, shared_gate=False)}


def _write_moe(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    return HUNYUAN.write(config) | {"num_experts": experts.count, "moe_topk": experts.used}


HUNYUAN_MOE = Family(
    name="hunyuan_v1_moe",
    architecture="HunYuanMoEV1ForCausalLM",
    defaults={**HUNYUAN.defaults, "num_experts": 1, "moe_topk": 1},
    read=_read_moe,
    write=_write_moe,
    keys=HUNYUAN.keys | words("num_experts num_local_experts moe_topk num_experts_per_tok output_router_logits"),
    only={"hidden_act": SILU},
    grows_base=True,
    rename={
        **HUNYUAN.rename,
        "mlp.gate": "mlp.gate.wg",
        **{f"mlp.shared_expert.{x}_proj": f"mlp.shared_mlp.{x}_proj" for x in ("gate", "up", "down")},
    },
)
