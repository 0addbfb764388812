"""Gemma, Gemma 2 and the text of Gemma 3: scaled embeddings, norms of 1 + w, gated GELU, caps, alternating windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.models.config import ModelConfig
from outrider.weights.families.base import (
    COMMON,
    GELU_TANH,
    Family,
    Raw,
    biases,
    kinds_of,
    optional,
    pattern,
    words,
)
from outrider.weights.values import positive, positive_integer

__all__ = ["GEMMA", "GEMMA2", "GEMMA3"]

_DEFAULTS = COMMON | {
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 2304,
    "head_dim": 256,
    "vocab_size": 256000,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "hidden_act": "gelu_pytorch_tanh",
    "attention_bias": False,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}
_NAMES = {
    "attention_output_norm": "post_attention_layernorm",
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}
_KEYS = words("attention_bias query_pre_attn_scalar final_logit_softcapping attn_logit_softcapping")
_CAUSAL: Mapping[str, tuple[Any, ...]] = {"use_bidirectional_attention": (False, None)}
_ONLY: Mapping[str, tuple[Any, ...]] = {"hidden_activation": GELU_TANH}


def _common(raw: Raw) -> dict[str, Any]:
    scale = positive_integer(raw, "hidden_size") ** 0.5
    return biases(raw) | {"mlp_bias": False, "activation": "gelu_tanh", "embedding_scale": scale}


def _read(raw: Raw, full_every: int) -> dict[str, Any]:
    return {
        **_common(raw),
        **pattern(raw, full_every),
        "norms": "both",
        "attention_scale": positive(raw, "query_pre_attn_scalar") ** -0.5,
        "logit_cap": optional(raw, "final_logit_softcapping"),
    }


def _write(config: ModelConfig) -> dict[str, Any]:
    assert config.attention_scale is not None
    return {
        **_write_common(config),
        "query_pre_attn_scalar": round(config.attention_scale**-2),
        "final_logit_softcapping": config.logit_cap,
        "sliding_window": config.sliding_window,
        "layer_types": kinds_of(config),
    }


def _write_common(config: ModelConfig) -> dict[str, Any]:
    gelu = {"hidden_act": GELU_TANH[0], "hidden_activation": GELU_TANH[0]}
    return gelu | {"attention_bias": config.attention_bias}


GEMMA = Family(
    name="gemma",
    architecture="GemmaForCausalLM",
    defaults={key: value for key, value in _DEFAULTS.items() if key not in ("sliding_window", "query_pre_attn_scalar")}
    | {
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "hidden_size": 3072,
        "intermediate_size": 24576,
    },
    read=_common,
    write=_write_common,
    keys=words("attention_bias"),
    only={"hidden_act": (*GELU_TANH, "gelu"), **_CAUSAL},  # "gelu" meant the tanh, says transformers
    norm_offset=1.0,
)
GEMMA2 = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    defaults=_DEFAULTS | {"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    read=lambda raw: _read(raw, 2) | {"attention_cap": optional(raw, "attn_logit_softcapping")},
    write=lambda config: _write(config) | {"attn_logit_softcapping": config.attention_cap},
    keys=_KEYS,
    only=_ONLY,
    windows="of its own",
    rename=_NAMES,
    norm_offset=1.0,
)
GEMMA3 = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    defaults=_DEFAULTS
    | {
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "final_logit_softcapping": None,
        "sliding_window_pattern": 6,
    },
    read=lambda raw: _read(raw, positive_integer(raw, "sliding_window_pattern")) | {"qk_norm": True},
    write=lambda config: _write(config) | {"rope_local_base_freq": config.local_rope_theta},
    keys=words(
        "attention_bias query_pre_attn_scalar final_logit_softcapping sliding_window_pattern rope_local_base_freq"
    ),
    only={**_ONLY, **_CAUSAL},
    windows="of its own",
    theta=1e6,
    rope_by_kind=1e4,
    rename=_NAMES,
    norm_offset=1.0,
)
