"""Mixtures of experts in GGUF files, by llama.cpp's names of architectures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.hybrid import NEXTN, NEXTN_TENSORS
from outrider.weights.gguf.names import GGUFFamily, shortest

__all__ = ["COUNTS", "ROUTED", "check_sigmoid"]

_SIGMOID = 2  # of llama.cpp's kinds of routers
COUNTS = ("expert_count", "expert_used_count", "expert_feed_forward_length")
"""Keys of the number of experts, of those that a token is computed by, and of their size."""
_SCORE_BIAS: Mapping[str, str] = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_DEEPSEEK = (
    *("expert_shared_count", "expert_weights_scale", "expert_weights_norm", "expert_gating_func"),
    *("leading_dense_block_count", "expert_group_count", "expert_group_used_count"),
)


def _size(arch: str, header: GGUFHeader) -> Any:
    """The intermediate size of an expert; where it is left out, a share of the whole."""
    used, whole = (header.scalar(f"{arch}.{key}") for key in ("expert_used_count", "feed_forward_length"))
    share = whole // used if isinstance(used, int) and used and isinstance(whole, int) else None
    return header.scalar(f"{arch}.expert_feed_forward_length") or share


def check_sigmoid(arch: str, header: GGUFHeader) -> None:
    """Raise ``ModelFormatError`` for a router of another kind."""
    kind = header.scalar(f"{arch}.expert_gating_func", _SIGMOID)
    if kind != _SIGMOID and not (kind == 0 and arch == "glm4moe"):  # where 0 is the architecture's own
        raise ModelFormatError(f"{arch}.expert_gating_func={shown(kind)} is not supported: only {_SIGMOID} is")


def _qwen2moe(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """In this architecture llama.cpp never normalises the weights of experts."""
    get = header.scalar
    return {
        "num_experts": get(f"{arch}.expert_count"),
        "num_experts_per_tok": get(f"{arch}.expert_used_count"),
        "moe_intermediate_size": _size(arch, header),
        "shared_expert_intermediate_size": get(f"{arch}.expert_shared_feed_forward_length")
        or get(f"{arch}.feed_forward_length"),
        "norm_topk_prob": False,
        "qkv_bias": "blk.0.attn_q.bias" in header.tensors,
    }


def _olmoe(arch: str, header: GGUFHeader) -> dict[str, Any]:
    count, used = (header.scalar(f"{arch}.{key}") for key in COUNTS[:2])
    return {"num_experts": count, "num_experts_per_tok": used, "norm_topk_prob": False}


def _granitemoe(arch: str, header: GGUFHeader) -> dict[str, Any]:
    factors = {
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale",
        "logits_scaling": "logit_scale",
    }
    count, used = (header.scalar(f"{arch}.{key}") for key in COUNTS[:2])
    own = {key: shortest(header.scalar(f"{arch}.{name}", 1.0)) for key, name in factors.items()}
    return own | {"num_local_experts": count, "num_experts_per_tok": used}


def _minimax(arch: str, header: GGUFHeader) -> dict[str, Any]:
    check_sigmoid(arch, header)
    count, used = (header.scalar(f"{arch}.{key}") for key in COUNTS[:2])
    return {"num_local_experts": count, "num_experts_per_tok": used}  # of the size of an MLP


def _deepseek(arch: str, header: GGUFHeader) -> dict[str, Any]:
    check_sigmoid(arch, header)
    get = header.scalar
    groups = get(f"{arch}.expert_group_count", 1) or 1
    return {
        "n_routed_experts": get(f"{arch}.expert_count"),
        "num_experts_per_tok": get(f"{arch}.expert_used_count"),
        "moe_intermediate_size": _size(arch, header),
        "n_shared_experts": get(f"{arch}.expert_shared_count"),
        "routed_scaling_factor": shortest(get(f"{arch}.expert_weights_scale", 0.0)) or 1.0,  # 0: off
        "norm_topk_prob": get(f"{arch}.expert_weights_norm", False),
        "first_k_dense_replace": get(f"{arch}.leading_dense_block_count", 0),
        "n_group": groups,
        "topk_group": 1 if groups == 1 else get(f"{arch}.expert_group_used_count", 1),  # not read there
    }


def _ernie(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """The size of the expert of all tokens is its tensor's: converters compute it from the number of key heads."""
    get, size = header.scalar, _size(arch, header)
    stored = (tensor.shape for name, tensor in header.tensors.items() if name.endswith("ffn_gate_shexp.weight"))
    shared = next(stored, (0,))[0] if get(f"{arch}.expert_shared_feed_forward_length", 0) else 0
    return {
        "moe_num_experts": get(f"{arch}.expert_count"),
        "moe_k": get(f"{arch}.expert_used_count"),
        "moe_intermediate_size": size,
        "moe_num_shared_experts": shared // size if isinstance(size, int) and size else 0,
        "moe_layer_start_index": get(f"{arch}.leading_dense_block_count", 0),
        "moe_layer_interval": get(f"{arch}.interleave_moe_layer_step"),
    }


def _hunyuan(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """Experts and the expert of all tokens have the size of an MLP, whatever other keys say."""
    return {
        "num_experts": header.scalar(f"{arch}.expert_count"),
        "moe_topk": header.scalar(f"{arch}.expert_used_count"),
    }


def _glm4moe(arch: str, header: GGUFHeader) -> dict[str, Any]:
    own = {
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in header.tensors,
    }
    return _deepseek(arch, header) | own


ROUTED: Mapping[str, GGUFFamily] = {
    "qwen2moe": GGUFFamily(family="qwen2_moe", read=_qwen2moe, keys=(*COUNTS, "expert_shared_feed_forward_length")),
    "olmoe": GGUFFamily(family="olmoe", read=_olmoe, keys=COUNTS[:2]),
    "granitemoe": GGUFFamily(
        family="granitemoe",
        interleaved=True,
        read=_granitemoe,
        keys=(*COUNTS[:2], "embedding_scale", "residual_scale", "attention.scale", "logit_scale"),
    ),
    "minimax-m2": GGUFFamily(
        family="minimax_m2",
        read=_minimax,
        keys=(*COUNTS, "expert_gating_func"),
        whole_names=_SCORE_BIAS,
        partial=True,
    ),
    "glm4moe": GGUFFamily(
        family="glm4_moe",
        read=_glm4moe,
        keys=(*COUNTS, *_DEEPSEEK, NEXTN, "rope.dimension_sections"),
        tensors={"post_attention_norm": "post_attention_layernorm", **NEXTN_TENSORS},
        whole_names=_SCORE_BIAS,
        partial=True,
    ),
    "dots1": GGUFFamily(family="dots1", read=_deepseek, keys=(*COUNTS, *_DEEPSEEK), whole_names=_SCORE_BIAS),
    "ernie4_5-moe": GGUFFamily(
        family="ernie4_5_moe",
        interleaved=True,
        read=_ernie,
        keys=(
            *(*COUNTS, "expert_shared_count", "expert_shared_feed_forward_length", "leading_dense_block_count"),
            "interleave_moe_layer_step",
        ),
        whole_names=_SCORE_BIAS,
    ),
    "hunyuan-moe": GGUFFamily(
        family="hunyuan_v1_moe",
        read=_hunyuan,
        keys=(*COUNTS, "expert_shared_count", "expert_shared_feed_forward_length"),
        tensors={"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
    ),
}
"""By architecture."""
