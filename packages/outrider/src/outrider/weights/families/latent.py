"""Attention on latents in ``config.json``: DeepSeek V2 and V3 and what shares their layers."""

from __future__ import annotations

import math
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.models.latent import LatentAttention
from outrider.weights.families.base import Raw, flag, words
from outrider.weights.values import positive, positive_integer

__all__ = ["LATENT_DEFAULTS", "LATENT_KEYS", "LATENT_NAMES", "read_attention", "write_attention"]

LATENT_DEFAULTS: Raw = {
    "attention_bias": False,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
LATENT_KEYS = words("attention_bias kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim qk_head_dim")
LATENT_NAMES = {f"self_attn.{part}_b_proj": "self_attn.kv_b_proj" for part in "kv"}
"""Files have the rows of a head for its keys and for its values in one matrix."""

_EPS = 1e-6
"""In transformers' code the norms of latents have this epsilon, whatever ``rms_norm_eps`` says."""


def _scale_of_scores(raw: Raw, sizes: LatentAttention) -> float:
    """The scale of attention scores, which YaRN's ``mscale_all_dim`` changes."""
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    kind, scale = rope.get("rope_type", rope.get("type", "default")), 1.0 / math.sqrt(sizes.query_dim)
    share = rope.get("mscale_all_dim")
    if kind == "default" or not share:
        return scale
    factor = positive(rope, "factor")
    grown = 0.1 * positive(rope, "mscale_all_dim") * math.log(factor) + 1.0 if factor > 1 else 1.0
    return scale * round(grown, 12) ** 2  # logarithms of C libraries differ in the last digit


def _written_rope(config: ModelConfig, sizes: LatentAttention) -> dict[str, Any]:
    """``rope_scaling`` from which ``_scale_of_scores`` makes the configuration's."""
    scaling, factor = dict(config.rope_scaling), config.rope_scaling.get("factor", 1.0)
    grown = math.sqrt((config.attention_scale or 1.0) * math.sqrt(sizes.query_dim))
    if scaling and factor > 1 and abs(grown - 1) > 1e-9:
        scaling["mscale_all_dim"] = round((grown - 1) / (0.1 * math.log(factor)), 6)
    return {"rope_scaling": scaling or None}


def _sizes(raw: Raw) -> LatentAttention:
    """The sizes of a model's attention."""
    return LatentAttention(
        rank=positive_integer(raw, "kv_lora_rank"),
        query_rank=0 if raw["q_lora_rank"] is None else positive_integer(raw, "q_lora_rank"),
        plain=positive_integer(raw, "qk_nope_head_dim"),
        rotated=positive_integer(raw, "qk_rope_head_dim"),
        value_dim=positive_integer(raw, "v_head_dim"),
        eps=_EPS,
    )


def read_attention(raw: Raw) -> dict[str, Any]:
    """The fields of attention."""
    sizes, biased = _sizes(raw), flag(raw, "attention_bias")
    if sizes.rotated % 2:
        raise ModelFormatError(f"qk_rope_head_dim={sizes.rotated} is odd: rotary position needs pairs")
    return {
        "num_kv_heads": 1,
        "head_dim": sizes.row,
        "rotary_dim": None,
        "latent": sizes,
        "attention_scale": _scale_of_scores(raw, sizes),
        "attention_bias": biased,
        "output_bias": biased,
    }


def write_attention(config: ModelConfig) -> dict[str, Any]:
    """The keys from which ``read_attention`` makes its fields."""
    sizes = config.latent
    assert sizes is not None
    return {
        "num_key_value_heads": config.num_heads,
        "head_dim": sizes.rotated,
        "kv_lora_rank": sizes.rank,
        "q_lora_rank": sizes.query_rank or None,
        "qk_nope_head_dim": sizes.plain,
        "qk_rope_head_dim": sizes.rotated,
        "v_head_dim": sizes.value_dim,
        "attention_bias": config.attention_bias,
        **_written_rope(config, sizes),
    }
