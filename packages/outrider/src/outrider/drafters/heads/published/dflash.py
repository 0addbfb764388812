"""Published heads of DFlash and DFlash 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.drafters.heads.published.keys import (
    LIBRARY_KEYS,
    check_fixed,
    draft_vocab_size,
    feature_layers,
    rope,
    sections,
    sizes,
    windows,
)
from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.families.base import words
from outrider.weights.values import positive_integer

_OWN_KEYS = LIBRARY_KEYS | words(
    "block_size dflash_config num_target_layers target_hidden_size aux_hidden_state_layer_ids mask_token_id "
    "sliding_window_non_causal sample_from_anchor conv_kernel_size conv_group_size selector_rank selector_top_k"
)
_DFLASH_KEYS = words(
    "block_size mask_token_id target_layer_ids conv_kernel_size conv_group_size selector_rank selector_top_k"
)
_FIXED = {"model_type": "qwen3", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}


def describes(raw: Mapping[str, Any]) -> bool:
    """Whether a configuration is of a DFlash head, in the authors' or the library's format."""
    names = raw.get("architectures")
    named = isinstance(names, list) and any("DFlash" in str(name) for name in names)
    return named or raw.get("speculators_model_type") in ("dflash", "dflash2")


def read(raw: Mapping[str, Any], target: TargetFingerprint) -> HeadConfig:
    """See ``published.read_config``."""
    kind = raw.get("speculators_model_type", "dflash")
    if kind not in ("dflash", "dflash2"):
        raise ModelFormatError(f"a head of type {shown(kind)} is not read: eagle3, dflash and dflash2 are")
    merged, layer = sections(raw, _OWN_KEYS, "dflash_config", _DFLASH_KEYS)
    check_fixed(layer, _FIXED)
    check_fixed(merged, {"sample_from_anchor": False, "target_hidden_size": target.hidden_size})
    theta, _ = rope(layer, "qwen3", ("default",))
    layers, second = positive_integer(layer, "num_hidden_layers"), kind == "dflash2"
    reach, scored = windows(layer, layers), draft_vocab_size(raw, target)
    return HeadConfig(
        kind="diffusion",
        **sizes(layer, target),
        heads=positive_integer(merged, "block_size") - 1,
        feature_layers=feature_layers(merged, target),
        draft_vocab_size=scored,
        own_lm_head=scored is not None,
        rope_theta=theta,
        num_layers=layers,
        mask_token_id=merged.get("mask_token_id"),
        layer_windows=reach,
        causal_windows=bool(reach) and not merged.get("sliding_window_non_causal", second),
        conv_taps=merged.get("conv_kernel_size", 2 if second else 0),
        conv_group=merged.get("conv_group_size", 16 if second else 1),
        selector_rank=merged.get("selector_rank", 256 if second else 0),
        selector_top_k=merged.get("selector_top_k", 16 if second else 0),
    )
