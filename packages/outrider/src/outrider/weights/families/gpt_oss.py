"""gpt-oss: experts with biases and a clamped activation, and attention sinks."""

from __future__ import annotations

from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.clamped import ClampedSwiGLU
from outrider.models.config import Experts, ModelConfig
from outrider.weights.families.base import COMMON, Family, Raw, attention_biases, kinds_of, pattern, words
from outrider.weights.values import positive, positive_integer

__all__ = ["GPT_OSS"]


def _read(raw: Raw) -> dict[str, Any]:
    key = "num_experts" if raw.get("num_experts") is not None else "num_local_experts"
    count, used = positive_integer(raw, key), positive_integer(raw, "num_experts_per_tok")
    if used > count:
        raise ModelFormatError(f"num_experts_per_tok={used} is more than {key}={count}: download the model again")
    sizes: dict[str, Any] = {"count": count, "used": used, "size": positive_integer(raw, "intermediate_size")}
    experts = Experts(**sizes, normalised=True, router="softmax_of_used", router_bias=True, bias=True)
    clamp = ClampedSwiGLU(alpha=positive(raw, "swiglu_alpha"), limit=positive(raw, "swiglu_limit"))
    own = {"experts": experts, "clamped_swiglu": clamp, "attention_sinks": True}
    return pattern(raw, 2) | attention_biases(raw) | own


def _write(config: ModelConfig) -> dict[str, Any]:
    experts, clamp = config.experts, config.clamped_swiglu
    assert experts is not None
    assert clamp is not None
    return {
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "attention_bias": config.attention_bias,
        "swiglu_alpha": clamp.alpha,
        "swiglu_limit": clamp.limit,
        "sliding_window": config.sliding_window,
        "layer_types": kinds_of(config),
    }


GPT_OSS = Family(
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    defaults=COMMON
    | {
        "num_hidden_layers": 36,
        "num_local_experts": 128,
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "head_dim": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "attention_bias": True,
    },
    read=_read,
    write=_write,
    keys=words(
        "num_local_experts num_experts num_experts_per_tok swiglu_alpha swiglu_limit attention_bias "
        "router_aux_loss_coef output_router_logits"
    ),
    only={},
    windows="of its own",
    theta=150000.0,
    rope_otherwise={
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    rename={"mlp.gate": "mlp.router"},
    paired_experts="alternate",
)
