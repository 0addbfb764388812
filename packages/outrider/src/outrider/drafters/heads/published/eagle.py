"""Published EAGLE-3 and EAGLE-3.1 heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.drafters.heads.published.keys import (
    LIBRARY_KEYS,
    check_fixed,
    draft_vocab_size,
    layer_numbers,
    rope,
    sections,
    sizes,
    windows,
)
from outrider.weights.families.base import words

_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_OWN_KEYS = (
    LIBRARY_KEYS
    | {*_NORMS}
    | words("target_hidden_size eagle_aux_hidden_state_layer_ids embed_requires_grad eagle_config")
)
_EAGLE_KEYS = words(
    "eagle_aux_hidden_state_layer_ids use_aux_hidden_state use_input_layernorm_in_first_layer use_last_layernorm "
    "use_mtp_layernorm next_layer_regular parallel_draft_step parallel_draft_heads_num_layers has_lm_head"
) | {*_NORMS}
_FORMS = {
    "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False,
    "next_layer_regular": True, "parallel_draft_step": 1,
}  # fmt: skip
_FIXED = {
    "model_type": "llama", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "num_hidden_layers": 1,
}  # fmt: skip


def describes(raw: Mapping[str, Any]) -> bool:
    """Whether a configuration is of an EAGLE-3 head, in the authors' or the library's format."""
    names = raw.get("architectures")
    named = isinstance(names, list) and any("Eagle3" in str(name) for name in names)
    kind: object = raw.get("speculators_model_type", "eagle3" if named else None)
    return kind == "eagle3"


def read(raw: Mapping[str, Any], target: TargetFingerprint) -> HeadConfig:
    """See ``published.read_config``. A configuration without feature layers gets vLLM's default layers.

    NVIDIA's and vLLM's numbers of layers count blocks before the state: the number of the last is that of all blocks.
    """
    merged, layer = sections(raw, _OWN_KEYS, "eagle_config", _EAGLE_KEYS)
    check_fixed(layer, _FIXED)
    check_fixed(merged, {"target_hidden_size": target.hidden_size, **_FORMS})
    theta, scaling = rope(layer, "llama", ("default", "linear", "llama3"))
    found, count = merged.get("eagle_aux_hidden_state_layer_ids"), target.num_layers
    named = found if found else [2, count // 2, count - 3]
    fuses = merged.get("use_aux_hidden_state") is not False
    norms: dict[str, Any] = {name: merged.get(name) or False for name in _NORMS}
    return HeadConfig(
        kind="eagle3",
        **sizes({**layer, "vocab_size": target.vocab_size if layer is raw else layer.get("vocab_size")}, target),
        feature_layers=layer_numbers(named, "eagle_aux_hidden_state_layer_ids") if fuses else (),
        draft_vocab_size=draft_vocab_size(raw, target),
        own_lm_head=True,
        rope_theta=theta,
        rope_scaling=scaling,
        window=max(windows(layer, 1), default=0),
        **norms,
    )
