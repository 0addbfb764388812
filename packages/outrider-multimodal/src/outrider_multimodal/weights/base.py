"""Families of encoder–decoder models: configuration and tensor names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import merge_ids, shown
from outrider.weights.values import positive_integer
from outrider_multimodal.encoder_decoder import EncoderDecoderConfig

Raw = Mapping[str, Any]
"""``config.json``, with the keys of ``generation_config.json`` over it."""

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderFamily:
    """The differences of one family from the others."""

    name: str
    """``model_type`` in ``config.json``."""
    differs: str
    """The family's difference in words, for the documentation."""
    read: Callable[[Raw], dict[str, Any]]
    """Reads the fields of ``EncoderDecoderConfig``."""
    names: Callable[[EncoderDecoderConfig], dict[str, tuple[str, ...]]]
    optional: tuple[str, ...] = ()
    """Canonical names that a file may lack."""


def activation_of(raw: Raw, key: str, default: str) -> str:
    """The canonical name of the activation function in ``raw[key]``."""
    value = raw.get(key, default)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise ModelFormatError(f"{key}={shown(value)} is not supported: use one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[value]


def first_id(raw: Raw, key: str) -> int:
    """The token id in ``raw[key]``."""
    ids = merge_ids(raw.get(key))
    if not ids:
        raise ModelFormatError(f"{key} is missing: download the model again")
    return ids[0]


def bart_dimensions(raw: Raw) -> dict[str, Any]:
    """The fields whose keys BART, Marian and Whisper share."""
    hidden, heads = positive_integer(raw, "d_model"), positive_integer(raw, "decoder_attention_heads")
    encoder_heads = positive_integer(raw, "encoder_attention_heads")
    if hidden % heads or encoder_heads != heads:
        raise ModelFormatError(f"d_model={hidden} with {encoder_heads} and {heads} heads is not supported")
    return {
        "family": raw["model_type"],
        "vocab_size": positive_integer(raw, "vocab_size"),
        "hidden_size": hidden,
        "num_layers": positive_integer(raw, "decoder_layers"),
        "encoder_layers": positive_integer(raw, "encoder_layers"),
        "num_heads": heads,
        "num_kv_heads": heads,
        "encoder_heads": heads,
        "head_dim": hidden // heads,
        "intermediate_size": positive_integer(raw, "decoder_ffn_dim"),
        "encoder_intermediate_size": positive_integer(raw, "encoder_ffn_dim"),
        "layer_norm": True,
        "gated": False,
        "activation_function": activation_of(raw, "activation_function", "gelu"),
        "embedding_scale": hidden**0.5 if raw.get("scale_embedding") else 1.0,
        "eos_token_ids": merge_ids(raw.get("eos_token_id")),
        "tie_embeddings": True,
    }


def bart_like_names(config: EncoderDecoderConfig) -> dict[str, tuple[str, ...]]:
    """Tensor names that BART, Marian and Whisper share, except for embeddings."""
    names: dict[str, str] = {}
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.num_layers)):
        blocks = {"self_attn": "self_attn"} | ({"cross_attn": "encoder_attn"} if stack == "decoder" else {})
        for i in range(layers):
            ours = theirs = f"{stack}.layers.{i}."
            for block, own in blocks.items():
                names |= {f"{ours}{block}.{x}": f"{theirs}{own}.{x}_proj" for x in ("q", "k", "v", "out")}
                names[f"{ours}{block}_norm"] = f"{theirs}{own}_layer_norm"
            names |= {f"{ours}up": f"{theirs}fc1", f"{ours}down": f"{theirs}fc2"}
            names[f"{ours}mlp_norm"] = f"{theirs}final_layer_norm"
    return {
        f"{name}.{kind}": (f"model.{own}.{kind}", f"{own}.{kind}")
        for name, own in names.items()
        for kind in ("weight", "bias")
    }
