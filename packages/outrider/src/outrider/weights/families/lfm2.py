"""LFM2: most layers are short gated convolutions, with norms on q and k in the others."""

from __future__ import annotations

from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig, RecurrentLayers
from outrider.utils.json_files import shown
from outrider.weights.families.base import COMMON, Family, Raw, flag, num_layers, words
from outrider.weights.values import positive, positive_integer

__all__ = ["ATTENTION", "CONVOLUTION", "LFM2", "LFM2_NAMES", "LFM2_TOP", "read_lfm2", "write_lfm2"]

CONVOLUTION, ATTENTION = "conv", "full_attention"
"""Kinds in ``layer_types``."""


def _kinds(raw: Raw) -> tuple[bool, ...]:
    """For each layer, whether it is a convolution: by ``layer_types``, or all but ``full_attn_idxs``."""
    layers, kinds = num_layers(raw), raw.get("layer_types")
    if kinds is None:
        attend = raw.get("full_attn_idxs")
        if attend is not None and not isinstance(attend, list):
            raise ModelFormatError(f"full_attn_idxs={shown(attend)} is no list of layers: download the model again")
        return tuple(attend is not None and layer not in attend for layer in range(layers))
    known = (CONVOLUTION, ATTENTION)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise ModelFormatError(
            f"layer_types={shown(kinds)} does not name one of {', '.join(known)} for each of {layers} layers"
        )
    return tuple(kind == CONVOLUTION for kind in kinds)


def read_lfm2(raw: Raw) -> dict[str, Any]:
    layers, bias, hidden = _kinds(raw), flag(raw, "conv_bias"), positive_integer(raw, "hidden_size")
    width = positive_integer(raw, "conv_L_cache")
    if width < 2:
        raise ModelFormatError("conv_L_cache=1 is not supported: a convolution of 2 rows or more is")
    if all(layers):
        raise ModelFormatError("layer_types names no layer with attention, which is not supported: use another model")
    recurrent = RecurrentLayers(
        layers=layers,
        key_heads=1,
        value_heads=1,
        key_dim=0,
        value_dim=hidden,
        convolution=width,
        kind="short",
        convolution_bias=bias,
        projection_bias=bias,
    )
    tied = {} if raw.get("tie_embedding") is None else {"tie_embeddings": flag(raw, "tie_embedding")}
    return {"qk_norm": True, "recurrent": recurrent if any(layers) else None} | tied


def _read(raw: Raw) -> dict[str, Any]:
    """As transformers sizes the MLP: two thirds, times a factor, and then a multiple of a number."""
    size = positive_integer(raw, "intermediate_size" if raw.get("block_ff_dim") is None else "block_ff_dim")
    if flag(raw, "block_auto_adjust_ff_dim"):
        size = int(2 * size / 3)
        if raw["block_ffn_dim_multiplier"] is not None:
            size = int(positive(raw, "block_ffn_dim_multiplier") * size)
            multiple = positive_integer(raw, "block_multiple_of")
            size = (size + multiple - 1) // multiple * multiple
    return read_lfm2(raw) | {"intermediate_size": size}


def write_lfm2(config: ModelConfig) -> dict[str, Any]:
    recurrent = config.recurrent
    sizes = (
        {} if recurrent is None else {"conv_L_cache": recurrent.convolution, "conv_bias": recurrent.convolution_bias}
    )
    kinds = [CONVOLUTION if config.is_recurrent(layer) else ATTENTION for layer in range(config.num_layers)]
    return {**sizes, "layer_types": kinds, "norm_eps": config.rms_norm_eps}


LFM2_NAMES = {
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "linear_attn.in_proj_qkv": "conv.in_proj",
    "linear_attn.conv1d": "conv.conv",
    "linear_attn.out_proj": "conv.out_proj",
    "self_attn.o_proj": "self_attn.out_proj",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}
LFM2_TOP = {"model.norm": "model.embedding_norm"}

LFM2 = Family(
    name="lfm2",
    architecture="Lfm2ForCausalLM",
    defaults={key: value for key, value in COMMON.items() if key not in ("hidden_act", "rms_norm_eps")}
    | {
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "num_key_value_heads": 8,
        "vocab_size": 65536,
        "max_position_embeddings": 128000,
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": True,
    },
    read=_read,
    write=lambda config: write_lfm2(config) | {"block_auto_adjust_ff_dim": False},
    keys=words(
        "conv_bias conv_L_cache block_multiple_of block_ffn_dim_multiplier block_auto_adjust_ff_dim full_attn_idxs "
        "tie_embedding block_ff_dim"
    ),
    only={},
    eps="norm_eps",
    windows="of its own",
    theta=1e6,
    rename=LFM2_NAMES,
    rename_top=LFM2_TOP,
)
