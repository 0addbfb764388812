"""Published heads of DSpark: of its authors, of Liquid AI and NVIDIA, and of the ``speculators`` library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.drafters.heads.masked import DSpark
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

__all__ = ["SCORED", "describes", "read", "rename"]

_HEAD_KEYS = words(
    "block_size mask_token_id target_layer_ids num_target_layers markov_rank markov_head_type enable_confidence_head "
    "confidence_head_with_markov sample_from_anchor num_anchors projector_type causal is_causal use_swa "
    "swa_window_size attention_sink_bias ce_loss_alpha l1_loss_alpha confidence_head_alpha loss_decay_gamma "
    "target_hidden_size attention_mode"
)
_OWN_KEYS = LIBRARY_KEYS | _HEAD_KEYS | words(
    "dflash_config aux_hidden_state_layer_ids sliding_window_non_causal rope_is_neox_style num_speculative_tokens "
    "pure_draft_prefix_len emb_dim gru_hidden_dim lambda_base_start lambda_base_decay_ratio auf shift_label"
)  # fmt: skip
_FIXED = {
    "model_type": "qwen3", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
_NAMES = {
    "markov_head.markov_w1.": "markov.before.",
    "markov_head.markov_w2.": "markov.after.",
    "markov_head.gate_proj.": "markov.gate.",
    "confidence_head.proj.": "confidence.",
    "self_attn.attention_sink_bias": "self_attn.sinks",
}
SCORED = "markov.after.weight"
"""A table with a row for each token that the head scores."""
_ROTATED = (
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight",
)  # fmt: skip


def describes(raw: Mapping[str, Any]) -> bool:
    """Whether a configuration is of a DSpark head."""
    names = raw.get("architectures")
    named = isinstance(names, list) and any("DSpark" in str(name) for name in names)
    return named or raw.get("speculators_model_type") == "dspark"


def read(raw: Mapping[str, Any], target: TargetFingerprint) -> HeadConfig:
    """See ``published.read_config``."""
    merged, layer = sections(raw, _OWN_KEYS, "dflash_config", _HEAD_KEYS)
    check_fixed(layer, _FIXED)
    check_fixed(merged, {"target_hidden_size": target.hidden_size, "projector_type": "dspark", "attention_mode": "gqa"})
    theta, _ = rope(layer, "qwen3", ("default",))
    layers, scored, dspark = positive_integer(layer, "num_hidden_layers"), draft_vocab_size(raw, target), _own(merged)
    reach, causal = _windows(merged, layer, layers)
    return HeadConfig(
        kind="dspark",
        **sizes(layer, target),
        heads=positive_integer(merged, "block_size") - (not dspark.from_anchor),
        feature_layers=feature_layers(merged, target),
        draft_vocab_size=scored,
        own_lm_head=scored is not None,
        rope_theta=theta,
        num_layers=layers,
        mask_token_id=merged.get("mask_token_id"),
        layer_windows=reach,
        causal_windows=causal,
        dspark=dspark,
    )


def _own(merged: Mapping[str, Any]) -> DSpark:
    """The Markov head and the confidence head.

    The library's files that do not say which rows guess are of the time when the last token's did not.
    """
    rank, kind = merged.get("markov_rank", 0), merged.get("markov_head_type", "vanilla")
    if rank and kind not in ("vanilla", "gated"):
        raise ModelFormatError(f"markov_head_type={shown(kind)} is not supported: vanilla and gated are")
    library = "transformer_layer_config" in merged or merged.get("aux_hidden_state_layer_ids") is not None
    return DSpark(
        rank=rank,
        gated=bool(rank) and kind == "gated",
        confidence=merged.get("enable_confidence_head") or False,
        confidence_reads_token=bool(
            merged.get("enable_confidence_head") and merged.get("confidence_head_with_markov", not library)
        ),
        from_anchor=merged.get("sample_from_anchor", not library),
        sinks=merged.get("attention_sink_bias") or False,
    )


def _windows(merged: Mapping[str, Any], layer: Mapping[str, Any], layers: int) -> tuple[tuple[int, ...], bool]:
    """The window of each layer, and whether a block's rows see earlier rows alone in layers with a window."""
    causal = merged.get("is_causal", merged.get("causal"))
    if merged.get("use_swa"):
        return (positive_integer(merged, "swa_window_size"),) * layers, bool(causal)
    reach = windows(layer, layers)
    if causal and not (reach and all(reach)):
        raise ModelFormatError("causal=True in layers without a window is not supported: blocks are bidirectional")
    return reach, bool(reach) and bool(
        causal or not merged.get("sliding_window_non_causal", "transformer_layer_config" not in merged)
    )


def rename(tensors: Mapping[str, NDArray[Any]], raw: Mapping[str, Any], config: HeadConfig) -> dict[str, NDArray[Any]]:
    """A published head's tensors under our names, with rotated pairs half a head apart."""
    neighbours, found = not raw.get("rope_is_neox_style", True), {}
    for name, value in tensors.items():
        own = next((name.replace(old, new) for old, new in _NAMES.items() if old in name), name)
        found[own] = _halves(value, config.head_dim) if neighbours and own.endswith(_ROTATED) else value
    if "confidence.weight" in found:
        found.setdefault("confidence.bias", np.zeros(1, np.float32))
    return found


def _halves(value: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Rows of heads whose rotated pairs are neighbours, put half a head apart: the same shape."""
    if len(value) % head_dim:
        return value  # refused with its shape
    pairs = value.reshape(-1, head_dim // 2, 2, *value.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(value.shape)
