"""Heads as others publish them: DFlash and EAGLE-3, as their authors or the ``speculators`` library write them.

Every key of such a folder's configuration is read, without effect by a list, or refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from outrider.checkpoints.config_keys import HARMLESS
from outrider.checkpoints.config_rope import read_rope
from outrider.checkpoints.config_values import positive, positive_integer
from outrider.errors import IncompatibleDraftError, ModelFormatError
from outrider.heads.config import HeadConfig, TargetFingerprint, fingerprint_rows
from outrider.utils.json_files import shown

_LAYER_KEYS = frozenset(
    [
        "model_type",
        "architectures",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "hidden_act",
        "attention_bias",
        "mlp_bias",
        "sliding_window",
        "use_sliding_window",
        "max_window_layers",
        "layer_types",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "use_cache",
        "output_hidden_states",
        "output_attentions",
    ]
)
_OWN_KEYS = frozenset(
    [
        "architectures",
        "auto_map",
        "speculators_config",
        "speculators_model_type",
        "speculators_version",
        "transformer_layer_config",
        "draft_vocab_size",
        "tie_word_embeddings",
        "block_size",
        "dflash_config",
        "num_target_layers",
        "target_hidden_size",
        "aux_hidden_state_layer_ids",
        "mask_token_id",
        "sliding_window_non_causal",
        "sample_from_anchor",
        "conv_kernel_size",
        "conv_group_size",
        "selector_rank",
        "selector_top_k",
    ]
)
_DFLASH_KEYS = frozenset(
    [
        "block_size",
        "mask_token_id",
        "target_layer_ids",
        "conv_kernel_size",
        "conv_group_size",
        "selector_rank",
        "selector_top_k",
    ]
)
_PASSING = frozenset(name for names in HARMLESS.values() for name in names)
_TARGETS = re.compile(r"^(embed_tokens|lm_head|verifier_norm|verifier_lm_head)\.weight$|^(t2d|d2t)$")


def is_published(raw: Mapping[str, Any]) -> bool:
    """Whether a configuration is that of a published head rather than one of ours."""
    names = raw.get("architectures")
    return "format" not in raw and (
        "speculators_model_type" in raw or (isinstance(names, list) and any("DFlash" in str(name) for name in names))
    )


def read_config(raw: Mapping[str, Any], target: TargetFingerprint) -> HeadConfig:
    """The configuration of a published head for ``target``, whose digest it cannot know.

    Raises ``ModelFormatError`` for what is not understood, ``IncompatibleDraftError`` for other dimensions.
    """
    kind = raw.get("speculators_model_type", "dflash")
    if kind not in ("dflash", "dflash2"):
        raise ModelFormatError(f"a head of type {shown(kind)} is not read: dflash and dflash2 are")
    own = raw.get("dflash_config") or {}
    layer = raw.get("transformer_layer_config", raw)
    if not isinstance(own, dict) or not isinstance(layer, dict):
        raise ModelFormatError("dflash_config or transformer_layer_config is no object: download the head again")
    _check_keys(raw, _OWN_KEYS | (_LAYER_KEYS if layer is raw else frozenset()), "config.json")
    _check_keys(own, _DFLASH_KEYS, "dflash_config")
    if layer is not raw:
        _check_keys(layer, _LAYER_KEYS, "transformer_layer_config")
    merged = {**raw, **own}
    _check_fixed(merged, layer)
    theta, scaling = read_rope(layer)
    if scaling:
        raise ModelFormatError(f"rope_scaling={shown(scaling)} of a DFlash head is not supported")
    layers, block = positive_integer(layer, "num_hidden_layers"), positive_integer(merged, "block_size")
    heads, vocab = positive_integer(layer, "num_attention_heads"), positive_integer(layer, "vocab_size")
    hidden = positive_integer(layer, "hidden_size")
    scored = merged.get("draft_vocab_size") or vocab
    windows = _windows(layer, layers)
    sizes = {"hidden_size": (hidden, target.hidden_size), "vocab_size": (vocab, target.vocab_size)}
    for name, (there, here) in sizes.items():
        if there != here:
            raise IncompatibleDraftError(
                f"this head is for a target with {name}={there}, and this model has {here}: use its own head"
            )
    return HeadConfig(
        kind="diffusion",
        target=target,
        hidden_size=hidden,
        vocab_size=vocab,
        heads=block - 1,
        feature_layers=_feature_layers(merged, target),
        draft_vocab_size=None if scored == vocab else scored,
        own_lm_head=scored != vocab,
        num_heads=heads,
        num_kv_heads=layer.get("num_key_value_heads") or heads,
        head_dim=layer.get("head_dim") or hidden // heads,
        intermediate_size=positive_integer(layer, "intermediate_size"),
        rope_theta=theta,
        rms_norm_eps=positive({"rms_norm_eps": 1e-6, **layer}, "rms_norm_eps"),
        max_seq_len=positive_integer({"max_position_embeddings": 32768, **layer}, "max_position_embeddings"),
        num_layers=layers,
        mask_token_id=merged.get("mask_token_id"),
        layer_windows=windows,
        causal_windows=bool(windows) and not merged.get("sliding_window_non_causal", kind == "dflash2"),
        conv_taps=merged.get("conv_kernel_size", 2 if kind == "dflash2" else 0),
        conv_group=merged.get("conv_group_size", 16 if kind == "dflash2" else 1),
        selector_rank=merged.get("selector_rank", 256 if kind == "dflash2" else 0),
        selector_top_k=merged.get("selector_top_k", 16 if kind == "dflash2" else 0),
        training={"data": "published"},
    )


def rename(tensors: Mapping[str, Tensor], config: HeadConfig, embedding: Tensor) -> dict[str, Tensor]:
    """A published head's tensors under our names; those that are the target's own are left out.

    Args:
        embedding: rows ``fingerprint_rows`` of the target's embedding, float [n, d].

    Raises ``ModelFormatError`` if the head was trained with an embedding other than the target's.
    """
    own = tensors.get("embed_tokens.weight")
    if own is not None and own.shape != (config.vocab_size, config.hidden_size):
        raise ModelFormatError(f"embed_tokens.weight has shape {list(own.shape)}: download the head again")
    if own is not None and not _alike(own[fingerprint_rows(config.vocab_size)], embedding):
        raise ModelFormatError("the head has an embedding of its own, not the target's: such heads are not supported")
    kept = {name: value for name, value in tensors.items() if not _TARGETS.search(name)}
    if config.draft_vocab_size is not None:
        kept |= _draft_vocabulary(tensors, config.draft_vocab_size)
    return kept


def _draft_vocabulary(tensors: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    if missing := [name for name in ("lm_head.weight", "d2t") if name not in tensors]:
        raise ModelFormatError(f"tensor {missing[0]} is missing: a head with a draft vocabulary has one")
    if tensors["d2t"].shape != (count,):
        raise ModelFormatError(f"d2t has shape {list(tensors['d2t'].shape)}, but draft_vocab_size={count}")
    return {"lm_head.weight": tensors["lm_head.weight"], "d2t": tensors["d2t"].to(torch.int64) + torch.arange(count)}


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two embeddings are the same but for rounding: those of a quantised target differ by a few per cent."""
    if a.shape != b.shape:
        return False
    a, b = a.float(), b.float()
    return float((a - b).norm()) <= 0.2 * float(b.norm())


def _check_keys(raw: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    for name, value in raw.items():
        if value is not None and name not in known and name not in _PASSING:
            raise ModelFormatError(f"{where} has {shown(name)}: {shown(value)}, which is not understood")


def _check_fixed(merged: Mapping[str, Any], layer: Mapping[str, Any]) -> None:
    """Keys whose other values would be another model."""
    fixed = {"model_type": ("qwen3",), "hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)}
    for name, allowed in fixed.items():
        if layer.get(name) is not None and layer[name] not in allowed:
            raise ModelFormatError(f"{name}={shown(layer[name])} of a DFlash head: only {allowed[0]} is supported")
    if merged.get("sample_from_anchor"):
        raise ModelFormatError(
            "sample_from_anchor=True is not supported: such heads guess from the last token's row too"
        )


def _feature_layers(merged: Mapping[str, Any], target: TargetFingerprint) -> tuple[int, ...]:
    """Counts of layers. The authors' own files count from 0, the library's from 1."""
    found = merged.get("aux_hidden_state_layer_ids")
    first = 0
    if found is None:
        found, first = merged.get("target_layer_ids"), 1
    if not isinstance(found, list) or not found or not all(type(layer) is int for layer in found):
        raise ModelFormatError(f"target_layer_ids={shown(found)} names no layers of the target")
    layers = tuple(layer + first for layer in found)
    if first and target.num_layers in layers:
        raise ModelFormatError(f"target_layer_ids={shown(found)} has the last layer, which is not supported")
    return layers


def _windows(layer: Mapping[str, Any], layers: int) -> tuple[int, ...]:
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
