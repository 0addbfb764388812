"""The numbers of the native library's struct of a model."""

from __future__ import annotations

from typing import Any

from outrider.models.config import ModelConfig
from outrider.models.native_names import widest_mlp
from outrider.models.shard import ShardOf

__all__ = ["struct_fields"]

_ACTIVATIONS, _CLAMPED_SWIGLU = {"silu": 0, "gelu_tanh": 1, "relu_squared": 3}, 2


def struct_fields(config: ModelConfig, share: ShardOf | None = None) -> dict[str, Any]:
    """The fields of a ``ModelStruct`` that are numbers. ``share``: of this process; None: the whole model."""
    clamp = config.clamped_swiglu
    return {
        "layers": config.num_layers,
        "hidden": config.hidden_size,
        "heads": config.num_heads if share is None else share.query_heads,
        "kv_heads": config.num_kv_heads if share is None else share.key_heads,
        "head_dim": config.head_dim,
        "inner": widest_mlp(config),
        "positions": config.max_seq_len,
        "activation": _ACTIVATIONS[config.activation] if clamp is None else _CLAMPED_SWIGLU,
        "eps": config.rms_norm_eps,
        "embedding_scale": _unless_one(config.embedding_scale),
        "residual_scale": _unless_one(config.residual_scale),
        "logit_scale": _unless_one(config.logit_scale),
        "attention_scale": config.attention_scale or 0.0,
        "attention_cap": config.attention_cap or 0.0,
        "logit_cap": config.logit_cap or 0.0,
        "swiglu_alpha": 0.0 if clamp is None else clamp.alpha,
        "swiglu_limit": 0.0 if clamp is None else clamp.limit,
        "layer_inputs": 0 if config.gemma4 is None else config.gemma4.layer_inputs,
    }


def _unless_one(scale: float) -> float:
    """The library's form of a scale: 0 for 1, which turns it off."""
    return 0.0 if scale == 1.0 else scale
