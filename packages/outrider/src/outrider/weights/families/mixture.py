"""Mixtral and Qwen3-MoE: a mixture of experts in place of the MLP."""

from __future__ import annotations

from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import Experts, ModelConfig
from outrider.utils.json_files import shown
from outrider.weights.families.base import COMMON, SILU, Family, Raw, flag, num_layers, words
from outrider.weights.values import positive_integer

__all__ = ["MIXTRAL", "QWEN3_MOE", "count_key", "experts_of", "write_plain"]


def experts_of(
    raw: Raw,
    count: str,
    size: str,
    normalised: bool,
    layers: tuple[bool, ...] = (),
    used_key: str = "num_experts_per_tok",
) -> Experts:
    """Experts whose number and size are under the keys ``count`` and ``size``, with a plain router."""
    found, used = positive_integer(raw, count), positive_integer(raw, used_key)
    if used > found:
        raise ModelFormatError(f"{used_key}={used} is more than {count}={found}: download the model again")
    return Experts(count=found, used=used, size=positive_integer(raw, size), normalised=normalised, layers=layers)


def count_key(raw: Raw, *names: str) -> str:
    """The key of the number of experts: the first of ``names`` that the file has, as in transformers."""
    return next((name for name in names if raw.get(name) is not None), names[-1])


def _read_mixtral(raw: Raw) -> dict[str, Any]:
    count = count_key(raw, "num_experts", "num_local_experts")
    return {"experts": experts_of(raw, count, "intermediate_size", True)}


def write_plain(config: ModelConfig, count: str) -> dict[str, Any]:
    """The numbers of experts, under the key ``count`` and its companion."""
    experts = config.experts
    assert experts is not None
    return {count: experts.count, "num_experts_per_tok": experts.used}


def _write_mixtral(config: ModelConfig) -> dict[str, Any]:
    assert config.experts is not None
    own = {"num_local_experts": config.experts.count, "num_experts_per_tok": config.experts.used}
    return own | {"sliding_window": config.sliding_window}


def _read_qwen3(raw: Raw) -> dict[str, Any]:
    layers, every = num_layers(raw), positive_integer(raw, "decoder_sparse_step")
    dense = raw["mlp_only_layers"] or []
    if not isinstance(dense, list) or not all(isinstance(n, int) for n in dense):
        raise ModelFormatError(f"mlp_only_layers={shown(dense)} is no list of layers: download the model again")
    sparse = tuple(i not in dense and (i + 1) % every == 0 for i in range(layers))
    count = count_key({"num_experts": 128, **raw}, "num_local_experts", "num_experts")
    experts = experts_of(
        {"num_experts": 128, **raw}, count, "moe_intermediate_size", flag(raw, "norm_topk_prob"), sparse
    )
    return {"qk_norm": True, "experts": experts if any(sparse) else None}


def _write_qwen3(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    return {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.size,
        "norm_topk_prob": experts.normalised,
        "mlp_only_layers": [i for i in range(config.num_layers) if not config.is_sparse(i)],
        "decoder_sparse_step": 1,
        "use_sliding_window": config.sliding_window is not None,
        "sliding_window": config.sliding_window,
    }


_ROUTER = words("output_router_logits router_aux_loss_coef router_jitter_noise")  # training

MIXTRAL = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    defaults=COMMON
    | {
        "vocab_size": 32000,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
    },
    read=_read_mixtral,
    write=_write_mixtral,
    keys=_ROUTER | words("num_experts_per_tok num_experts num_local_experts"),
    windows="all",
    theta=1e6,
    rename={
        "mlp.gate": "block_sparse_moe.gate",
        "mlp.experts.*.gate_proj": "block_sparse_moe.experts.*.w1",
        "mlp.experts.*.down_proj": "block_sparse_moe.experts.*.w2",
        "mlp.experts.*.up_proj": "block_sparse_moe.experts.*.w3",
    },
)
QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    defaults=COMMON
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_key_value_heads": 4,
        "vocab_size": 151936,
        "intermediate_size": 6144,
        "max_position_embeddings": 32768,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "mlp_only_layers": None,
        "use_sliding_window": False,
        "sliding_window": 4096,
    },
    read=_read_qwen3,
    write=_write_qwen3,
    keys=_ROUTER
    | words(
        "decoder_sparse_step moe_intermediate_size num_experts_per_tok num_experts num_local_experts norm_topk_prob "
        "mlp_only_layers max_window_layers"
    ),
    only={"hidden_act": SILU, "attention_bias": (False, None)},
    windows="all",
)
