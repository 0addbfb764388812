"""Shared readers of published heads' configurations: their keys, and the sizes of their layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.errors import IncompatibleDraftError, ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.families import FAMILIES
from outrider.weights.families.base import words
from outrider.weights.hf_config.keys import HARMLESS
from outrider.weights.hf_config.rope import read_rope
from outrider.weights.values import positive, positive_integer

LAYER_KEYS = words(
    "model_type architectures vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters "
    "hidden_act attention_bias mlp_bias sliding_window use_sliding_window max_window_layers layer_types "
    "tie_word_embeddings bos_token_id eos_token_id pad_token_id use_cache output_hidden_states output_attentions"
)
"""Keys of a decoder layer. Each is read or, like the token ids, has no effect on drafts."""
LIBRARY_KEYS = words(
    "architectures auto_map speculators_config speculators_model_type speculators_version transformer_layer_config "
    "draft_vocab_size tie_word_embeddings"
)
"""Keys that the ``speculators`` library writes for every head."""
_PASSING = frozenset(name for names in HARMLESS.values() for name in names)


def sections(
    raw: Mapping[str, Any], known: frozenset[str], inner: str, inner_known: frozenset[str]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The configuration merged with its object ``inner``, and the configuration of its layers.

    The library writes an object for the layers; the authors' files have all keys at the top level. Raises
    ``ModelFormatError`` for an unknown key.
    """
    own, layer = raw.get(inner) or {}, raw.get("transformer_layer_config", raw)
    if not isinstance(own, dict) or not isinstance(layer, dict):
        raise ModelFormatError(f"{inner} or transformer_layer_config is no object: download the head again")
    _check_keys(raw, known | (LAYER_KEYS if layer is raw else frozenset()), "config.json")
    _check_keys(own, inner_known, inner)
    if layer is not raw:
        _check_keys(layer, LAYER_KEYS, "transformer_layer_config")
    return {**raw, **own}, layer


def _check_keys(raw: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    """Raise ``ModelFormatError`` naming the first key that is neither known nor without effect."""
    for name, value in raw.items():
        if value is not None and name not in known and name not in _PASSING:
            raise ModelFormatError(f"{where} has {shown(name)}: {shown(value)}, which is not understood")


def check_fixed(raw: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """Raise ``ModelFormatError`` if a key has another value than ``fixed``, the only supported one."""
    for name, value in fixed.items():
        if raw.get(name) is not None and raw[name] != value:
            raise ModelFormatError(f"{name}={shown(raw[name])}: only heads with {name}={shown(value)} are supported")


def sizes(layer: Mapping[str, Any], target: TargetFingerprint) -> dict[str, Any]:
    """The dimensions of a ``HeadConfig``. Raises ``IncompatibleDraftError`` if they contradict ``target``."""
    heads, hidden = positive_integer(layer, "num_attention_heads"), positive_integer(layer, "hidden_size")
    for name, here in (("hidden_size", target.hidden_size), ("vocab_size", target.vocab_size)):
        if (there := positive_integer(layer, name)) != here:
            raise IncompatibleDraftError(
                f"this head is for a target with {name}={there}, and this model has {here}: use its own head"
            )
    return {
        "target": target,
        "hidden_size": hidden,
        "vocab_size": target.vocab_size,
        "num_heads": heads,
        "num_kv_heads": layer.get("num_key_value_heads") or heads,
        "head_dim": layer.get("head_dim") or hidden // heads,
        "intermediate_size": positive_integer(layer, "intermediate_size"),
        "rms_norm_eps": positive({"rms_norm_eps": 1e-6, **layer}, "rms_norm_eps"),
        "max_seq_len": positive_integer({"max_position_embeddings": 32768, **layer}, "max_position_embeddings"),
        "training": {"data": "published"},
    }


def rope(layer: Mapping[str, Any], family: str, types: tuple[str, ...]) -> tuple[float, dict[str, Any]]:
    """Base and scaling of the rotary embedding. Raises ``ModelFormatError`` for a type not in ``types``."""
    found = read_rope(layer, FAMILIES[family])
    kind = found.scaling.get("rope_type", "default")
    if kind not in types:
        raise ModelFormatError(f"rope_scaling of type {shown(kind)} is not supported for heads of this kind")
    return found.theta, found.scaling


def draft_vocab_size(raw: Mapping[str, Any], target: TargetFingerprint) -> int | None:
    """The number of tokens that the head scores; None: all."""
    if raw.get("draft_vocab_size") is None:
        return None
    scored = positive_integer(raw, "draft_vocab_size")
    return None if scored == target.vocab_size else scored


def layer_numbers(found: object, name: str) -> tuple[int, ...]:
    """``found`` as a tuple of layer numbers. Raises ``ModelFormatError`` naming ``name`` otherwise."""
    if not isinstance(found, list) or not found or not all(type(layer) is int for layer in found):
        raise ModelFormatError(f"{name}={shown(found)} names no layers of the target")
    return tuple(found)


def feature_layers(merged: Mapping[str, Any], target: TargetFingerprint) -> tuple[int, ...]:
    """The layer numbers of the features, from 1. The authors' files count from 0, the library's from 1."""
    if merged.get("aux_hidden_state_layer_ids") is not None:
        return layer_numbers(merged["aux_hidden_state_layer_ids"], "aux_hidden_state_layer_ids")
    layers = tuple(layer + 1 for layer in layer_numbers(merged.get("target_layer_ids"), "target_layer_ids"))
    if target.num_layers in layers:
        raise ModelFormatError(f"target_layer_ids={shown(layers)} has the last layer, which is not supported")
    return layers


def windows(layer: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """The attention window of each layer; 0: unlimited. Empty if all layers are unlimited."""
    kinds = layer.get("layer_types")
    if kinds is None:
        if layer.get("use_sliding_window"):
            raise ModelFormatError("use_sliding_window without layer_types does not say which layers")
        return ()
    if not isinstance(kinds, list) or not set(kinds) <= {"full_attention", "sliding_attention"} or len(kinds) != layers:
        raise ModelFormatError(f"layer_types={shown(kinds)} is not understood")
    if "sliding_attention" not in kinds:
        return ()
    window = positive_integer(layer, "sliding_window")
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
