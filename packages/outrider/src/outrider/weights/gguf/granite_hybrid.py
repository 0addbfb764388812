"""Granite 4 in GGUF files: layers whose number of key heads is 0 are Mamba-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.names import GGUFFamily, number_of_parts, numbers_by_layer, shortest

__all__ = ["GRANITE_HYBRID", "SSM", "mamba_tensors", "mamba_whole_names", "per_head"]

SSM = ("conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size")
"""Keys of ``ARCH.ssm.``."""
_KV_HEADS = "attention.head_count_kv"
_FACTORS = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


def mamba_tensors(prefix: str) -> Mapping[str, str]:
    """Names of Mamba-2 tensors in a family whose own begin with ``prefix``."""
    own = {"ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_norm": "norm", "ssm_out": "out_proj"}
    return {name: f"{prefix}.{mine}" for name, mine in own.items()}


def mamba_whole_names(prefix: str) -> Mapping[str, str]:
    """The same for whole names. llama.cpp's converter keeps -exp(A_log) as ``ssm_a``."""
    return {"ssm_a": "linear_attn.decay", "ssm_d": f"{prefix}.D", "ssm_dt.bias": f"{prefix}.dt_bias"}


def per_head(arch: str, header: GGUFHeader) -> int:
    """Values of a Mamba-2 head. Raises ``ModelFormatError`` where the heads do not divide all of them."""
    heads, inner = (header.scalar(f"{arch}.ssm.{key}") for key in ("time_step_rank", "inner_size"))
    if not all(isinstance(n, int) and n > 0 for n in (inner, heads)) or inner % heads:
        raise ModelFormatError(
            f"{arch}.ssm.inner_size={shown(inner)} is no multiple of {arch}.ssm.time_step_rank={shown(heads)}: "
            "download the file again"
        )
    return int(inner // heads)


def _read(arch: str, header: GGUFHeader) -> dict[str, Any]:
    get, size = header.scalar, per_head(arch, header)
    conv, state, groups, heads, inner = (get(f"{arch}.ssm.{key}") for key in SSM)
    width, key = get(f"{arch}.embedding_length"), f"{arch}.{_KV_HEADS}"
    kv_heads, experts = numbers_by_layer(header, key, get(f"{arch}.block_count")), get(f"{arch}.expert_count", 0)
    shared = get(f"{arch}.{'expert_shared_feed_forward_length' if experts else 'feed_forward_length'}")
    return {mine: shortest(get(f"{arch}.{name}", 1.0)) for mine, name in _FACTORS.items()} | {
        "attention_multiplier": shortest(get(f"{arch}.attention.scale")),
        "attention_bias": any(name.endswith(".attn_q.bias") for name in header.tensors),
        "num_key_value_heads": number_of_parts(kv_heads, key),
        "layer_types": ["attention" if count else "mamba" for count in kv_heads],
        "position_embedding_type": "rope" if get(f"{arch}.rope.scaling.finetuned", True) else None,
        "mamba_d_conv": conv,
        "mamba_d_state": state,
        "mamba_n_groups": groups,
        "mamba_n_heads": heads,
        "mamba_d_head": size,
        "mamba_expand": inner // width if isinstance(width, int) and width > 0 else None,
        "mamba_conv_bias": any(name.endswith(".ssm_conv1d.bias") for name in header.tensors),
        "num_local_experts": experts,
        "num_experts_per_tok": get(f"{arch}.expert_used_count", 0),
        "shared_intermediate_size": shared,
    }


GRANITE_HYBRID = GGUFFamily(
    family="granitemoehybrid",
    interleaved=True,
    read=_read,
    keys=(
        *(f"ssm.{key}" for key in SSM),
        *_FACTORS.values(),
        *("attention.scale", "rope.scaling.finetuned"),
        *("expert_count", "expert_used_count", "expert_shared_feed_forward_length"),
    ),
    tensors=mamba_tensors("mamba"),
    whole_names=mamba_whole_names("mamba"),
    by_layer=(_KV_HEADS,),
)
