"""GLM-4: half of a head rotated, in adjacent pairs; GLM-4-0414 also norms the outputs of blocks."""

from __future__ import annotations

from outrider.weights.families.base import COMMON, Family, flag, words

__all__ = ["GLM", "GLM4"]

_DEFAULTS = COMMON | {
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}
_FUSED = {f"mlp.{x}_proj": "mlp.gate_up_proj" for x in ("gate", "up")}

GLM = Family(
    name="glm",
    architecture="GlmForCausalLM",
    defaults=_DEFAULTS,
    read=lambda raw: {"attention_bias": flag(raw, "attention_bias")},
    write=lambda config: {"attention_bias": config.attention_bias},
    keys=words("attention_bias"),
    partial=True,
    rename=_FUSED,
    interleaved=True,
)
GLM4 = Family(
    name="glm4",
    architecture="Glm4ForCausalLM",
    defaults=_DEFAULTS,
    read=lambda raw: {"attention_bias": flag(raw, "attention_bias"), "norms": "both"},
    write=lambda config: {"attention_bias": config.attention_bias},
    keys=words("attention_bias"),
    partial=True,
    rename=_FUSED | {"attention_output_norm": "post_self_attn_layernorm", "mlp_output_norm": "post_mlp_layernorm"},
    interleaved=True,
)
