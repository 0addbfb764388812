"""Nemotron-H and its successors in GGUF files: the numbers of key heads and the sizes of MLPs tell a layer's kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.weights.families.nemotron_h import ATTENTION, EXPERTS, MAMBA, MLP
from outrider.weights.gguf.granite_hybrid import SSM, mamba_tensors, mamba_whole_names, per_head
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.hybrid import NEXTN, NEXTN_TENSORS
from outrider.weights.gguf.names import GGUFFamily, number_of_parts, numbers_by_layer, shortest
from outrider.weights.gguf.routed import COUNTS, check_sigmoid

__all__ = ["NEMOTRON"]

_KV_HEADS, _SIZES = "attention.head_count_kv", "feed_forward_length"
_EPS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
_ROUTER = (
    *("expert_shared_feed_forward_length", "expert_shared_count", "expert_weights_norm", "expert_weights_scale"),
    *("expert_gating_func", "expert_group_count", "expert_group_used_count", "moe_latent_size"),
)


def _read(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """Blocks behind the layers are the draft head's."""
    get = header.scalar
    blocks, layers = get(f"{arch}.block_count"), -int(get(f"{arch}.{NEXTN}", 0)) or None
    kv_heads, sizes = (numbers_by_layer(header, f"{arch}.{key}", blocks)[:layers] for key in (_KV_HEADS, _SIZES))
    of_mlp = EXPERTS if get(f"{arch}.expert_count", 0) else MLP
    conv, state, groups, heads, _ = (get(f"{arch}.ssm.{key}") for key in SSM)
    kinds = [of_mlp if size else ATTENTION if count else MAMBA for count, size in zip(kv_heads, sizes, strict=True)]
    return {
        "layers_block_type": kinds,
        "num_key_value_heads": number_of_parts(kv_heads, f"{arch}.{_KV_HEADS}"),
        "intermediate_size": number_of_parts(sizes, f"{arch}.{_SIZES}"),
        "layer_norm_epsilon": shortest(get(f"{arch}.{_EPS[0]}", get(f"{arch}.{_EPS[1]}"))),
        "mlp_bias": any(name.endswith(".ffn_up.bias") for name in header.tensors),
        "use_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in header.tensors),
        "n_groups": groups,
        "mamba_num_heads": heads,
        "mamba_head_dim": per_head(arch, header),
        "ssm_state_size": state,
        "conv_kernel": conv,
    }


def _read_experts(arch: str, header: GGUFHeader) -> dict[str, Any]:
    check_sigmoid(arch, header)
    get, own = header.scalar, _read(arch, header)
    count, used, size = (get(f"{arch}.{key}") for key in COUNTS)
    groups = get(f"{arch}.expert_group_count", 1) or 1
    return own | {
        "n_routed_experts": count,
        "num_experts_per_tok": used,
        "moe_intermediate_size": size or own["intermediate_size"] // used,
        "moe_shared_expert_intermediate_size": get(f"{arch}.expert_shared_feed_forward_length"),
        "routed_scaling_factor": shortest(get(f"{arch}.expert_weights_scale", 0.0)) or 1.0,  # 0: off
        "norm_topk_prob": get(f"{arch}.expert_weights_norm", False),
        "n_group": groups,
        "topk_group": 1 if groups == 1 else get(f"{arch}.expert_group_used_count", 1),  # not read there
        "moe_latent_size": get(f"{arch}.moe_latent_size", 0) or None,
    }


def _family(**own: Any) -> GGUFFamily:
    keys = (*(f"ssm.{key}" for key in SSM), *_EPS, NEXTN)
    return GGUFFamily(
        family="nemotron_h",
        interleaved=True,
        tensors={"attn_norm": "norm", "post_attention_norm": "post_norm", **mamba_tensors("mixer"), **NEXTN_TENSORS},
        whole_names={**mamba_whole_names("mixer"), "exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
        by_layer=(_KV_HEADS, _SIZES),
        **own | {"keys": keys + own.get("keys", ())},
    )


NEMOTRON: Mapping[str, GGUFFamily] = {
    "nemotron_h": _family(read=_read),
    "nemotron_h_moe": _family(read=_read_experts, keys=(*COUNTS, *_ROUTER)),
}
"""By architecture."""
