"""Qwen3-Next and Qwen3.5: three layers in four keep a recurrent state (Gated DeltaNet); attention has an output gate.

Qwen3.6 and Qwen3.8 have the architecture of Qwen3.5. The files of the models with a vision part describe the text part
in ``text_config``; see ``hf_config.multimodal``.
"""

from __future__ import annotations

from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import Experts, ModelConfig, RecurrentLayers
from outrider.utils.json_files import shown
from outrider.weights.families.base import COMMON, SILU, Family, Raw, attention_biases, flag, num_layers, words
from outrider.weights.values import positive_integer

__all__ = ["ATTENTION", "QWEN3_5", "QWEN3_5_MOE", "QWEN3_NEXT", "RECURRENT"]

RECURRENT, ATTENTION = "linear_attention", "full_attention"
"""Kinds in ``layer_types``."""

_SIZES = {
    "key_heads": "linear_num_key_heads",
    "value_heads": "linear_num_value_heads",
    "key_dim": "linear_key_head_dim",
    "value_dim": "linear_value_head_dim",
    "convolution": "linear_conv_kernel_dim",
}
"""Fields of ``RecurrentLayers`` and their keys."""


def _kinds(raw: Raw) -> tuple[bool, ...]:
    """For each layer, whether it is recurrent: by ``layer_types``, or all but every n-th."""
    layers, kinds = num_layers(raw), raw.get("layer_types")
    if kinds is None:
        every = positive_integer({"full_attention_interval": 4, **raw}, "full_attention_interval")
        return tuple((layer + 1) % every != 0 for layer in range(layers))
    known = (RECURRENT, ATTENTION)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise ModelFormatError(
            f"layer_types={shown(kinds)} does not name one of {', '.join(known)} for each of {layers} layers"
        )
    return tuple(kind == RECURRENT for kind in kinds)


def _read(raw: Raw) -> dict[str, Any]:
    sizes = {field: positive_integer(raw, key) for field, key in _SIZES.items()}
    if sizes["value_heads"] % sizes["key_heads"]:
        raise ModelFormatError(
            f"linear_num_key_heads={sizes['key_heads']} does not divide linear_num_value_heads={sizes['value_heads']}"
        )
    if sizes["convolution"] < 2:
        raise ModelFormatError("linear_conv_kernel_dim=1 is not supported: a convolution of 2 rows or more is")
    layers = _kinds(raw)
    if all(layers):
        raise ModelFormatError("layer_types names no layer with attention, which is not supported: use another model")
    made: dict[str, Any] = {"layers": layers, **sizes}
    recurrent = RecurrentLayers(**made) if any(layers) else None
    own = {"mlp_bias": False, "qk_norm": True, "gated_attention": True, "recurrent": recurrent}
    return attention_biases(raw) | own


def _write(config: ModelConfig) -> dict[str, Any]:
    recurrent = config.recurrent
    sizes = {} if recurrent is None else {key: getattr(recurrent, field) for field, key in _SIZES.items()}
    kinds = [RECURRENT if config.is_recurrent(layer) else ATTENTION for layer in range(config.num_layers)]
    return {**sizes, "attention_bias": config.attention_bias, "layer_types": kinds}


def _read_experts(raw: Raw, sparse: tuple[bool, ...], normalised: bool) -> dict[str, Any]:
    count, used = positive_integer(raw, "num_experts"), positive_integer(raw, "num_experts_per_tok")
    if used > count:
        raise ModelFormatError(f"num_experts_per_tok={used} is more than num_experts={count}: download the model again")
    experts = Experts(
        count=count,
        used=used,
        size=positive_integer(raw, "moe_intermediate_size"),
        normalised=normalised,
        layers=() if all(sparse) else sparse,
        shared_size=positive_integer(raw, "shared_expert_intermediate_size"),
    )
    unused = {"intermediate_size": experts.size} if all(sparse) else {}  # a key that need not be there
    return _read(raw) | {"experts": experts if any(sparse) else None} | unused


def _read_next(raw: Raw) -> dict[str, Any]:
    layers, every = num_layers(raw), positive_integer(raw, "decoder_sparse_step")
    dense = raw["mlp_only_layers"] or []
    if not isinstance(dense, list) or not all(isinstance(n, int) for n in dense):
        raise ModelFormatError(f"mlp_only_layers={shown(dense)} is no list of layers: download the model again")
    sparse = tuple(layer not in dense and (layer + 1) % every == 0 for layer in range(layers))
    return _read_experts(raw, sparse, flag(raw, "norm_topk_prob"))


def _write_experts(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    return _write(config) | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.size,
        "shared_expert_intermediate_size": experts.shared_size,
    }


def _write_next(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    dense = [layer for layer in range(config.num_layers) if not config.is_sparse(layer)]
    own = {"norm_topk_prob": experts.normalised, "mlp_only_layers": dense, "decoder_sparse_step": 1}
    return _write_experts(config) | own


_LINEAR = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_DEFAULTS = COMMON | _LINEAR | {
    "vocab_size": 248320,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "attention_bias": False,
    "partial_rotary_factor": 0.25,
}  # fmt: skip
_EXPERTS = {
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 8,
    "num_experts": 256,
}
_KEYS = words(
    "attention_bias full_attention_interval attn_output_gate mamba_ssm_dtype mtp_num_hidden_layers "
    "mtp_use_dedicated_embeddings"
) | frozenset(_SIZES.values())
_MIXTURE = words(
    "moe_intermediate_size shared_expert_intermediate_size num_experts_per_tok num_experts output_router_logits "
    "router_aux_loss_coef"
)
_NAMES = {"linear_attn.decay": "linear_attn.A_log"}
_FUSED = {
    **{f"linear_attn.in_proj_{x}": "linear_attn.in_proj_qkvz" for x in ("qkv", "z")},
    **{f"linear_attn.in_proj_{x}": "linear_attn.in_proj_ba" for x in ("b", "a")},
}

QWEN3_5 = Family(
    name="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    defaults=_DEFAULTS,
    read=_read,
    write=_write,
    keys=_KEYS,
    only={"hidden_act": SILU},
    windows="of its own",
    partial=True,
    rename=_NAMES,
    norm_offset=1.0,
    has_draft_head=True,
)
QWEN3_5_MOE = Family(
    name="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    defaults=_DEFAULTS | _EXPERTS,
    read=lambda raw: _read_experts(raw, (True,) * num_layers(raw), normalised=True),
    write=_write_experts,
    keys=_KEYS | _MIXTURE,
    only={"hidden_act": SILU},
    windows="of its own",
    partial=True,
    rename=_NAMES,
    norm_offset=1.0,
    has_draft_head=True,
    may_stack_experts=True,
)
QWEN3_NEXT = Family(
    name="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    defaults=_DEFAULTS
    | _EXPERTS
    | {
        "vocab_size": 151936,
        "num_hidden_layers": 48,
        "intermediate_size": 5632,
        "num_experts_per_tok": 10,
        "num_experts": 512,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
    },
    read=_read_next,
    write=_write_next,
    keys=_KEYS | _MIXTURE | words("norm_topk_prob decoder_sparse_step mlp_only_layers"),
    only={"hidden_act": SILU},
    windows="of its own",
    partial=True,
    rename=_NAMES | _FUSED,
    norm_offset=1.0,
    has_draft_head=True,
    may_stack_experts=True,
)
