"""DeepSeek V2 and V3, Kimi K2 and GLM-4.7-Flash in GGUF files, ``deepseek2``; and Mistral 4, ``mistral4``.

Newer files have the rows for keys and values of ``kv_b`` apart, those for keys turned round (``attn_k_b``), and count
one key head, of the size of a latent and the rotated part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.hybrid import NEXTN, NEXTN_TENSORS
from outrider.weights.gguf.names import GGUFFamily, shortest

__all__ = ["DEEPSEEK2", "MISTRAL4", "family_of_deepseek2"]

_GATING, _DENSE, _LOG = "expert_gating_func", "leading_dense_block_count", "rope.scaling.yarn_log_multiplier"
_SOFTMAX, _SIGMOID = 1, 2
_TEMPERATURE = ("attention.temperature_scale", "attention.temperature_length")
_LENGTHS = ("attention.key_length_mla", "attention.value_length_mla", "attention.kv_lora_rank", "attention.q_lora_rank")

_KEYS: tuple[str, ...] = (
    *(_GATING, _DENSE, _LOG, NEXTN, "vocab_size", *_LENGTHS),
    *("expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_count", "expert_weights_norm"),
    *("expert_weights_scale", "expert_group_count", "expert_group_used_count"),
)
_TENSORS: Mapping[str, str] = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    **NEXTN_TENSORS,
}
_WHOLE_NAMES: Mapping[str, str] = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}


def _gating(arch: str, header: GGUFHeader) -> int:
    """How the router scores. Files of GLM-4.7-Flash may not say; llama.cpp knows it by its size."""
    found = header.scalar(f"{arch}.{_GATING}", 0)
    if found not in (0, _SOFTMAX, _SIGMOID):
        raise ModelFormatError(f"{arch}.{_GATING}={shown(found)} is not supported: only {_SOFTMAX} and {_SIGMOID} are")
    if found:
        return int(found)
    embedding = header.tensors.get("token_embd.weight")
    is_glm = header.scalar(f"{arch}.block_count") in (47, 48) and embedding is not None and embedding.shape[0] == 154880
    return _SIGMOID if is_glm else _SOFTMAX


def family_of_deepseek2(header: GGUFHeader) -> GGUFFamily:
    """The family of a file: by its router."""
    return DEEPSEEK2["v3" if _gating("deepseek2", header) == _SIGMOID else "v2"]


def _sizes(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """Keys of ``config.json`` for attention. Older files have the lengths of a head in the place of a latent's."""
    get = header.scalar
    key, value = (get(f"{arch}.{name}", get(f"{arch}.{name.removesuffix('_mla')}")) for name in _LENGTHS[:2])
    rotated, rank = get(f"{arch}.rope.dimension_count"), get(f"{arch}.attention.kv_lora_rank")
    if not all(isinstance(n, int) for n in (key, rotated)) or key <= rotated:
        raise ModelFormatError(
            f"{arch}.attention.key_length={shown(key)} leaves nothing beside {shown(rotated)} rotated"
        )
    return {
        "kv_lora_rank": rank,
        "q_lora_rank": get(f"{arch}.attention.q_lora_rank") if "blk.0.attn_q_a.weight" in header.tensors else None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
        "head_dim": rotated,
        "attention_bias": False,
    }


def _rope(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """The scaling of YaRN, whose ``mscale`` llama.cpp takes for ``mscale_all_dim``."""
    get = header.scalar
    factor = get(f"{arch}.rope.scaling.factor")
    if get(f"{arch}.rope.scaling.type") != "yarn" or not isinstance(factor, float) or factor <= 1:
        return {}
    if get(f"{arch}.rope.scaling.attn_factor", 1.0) != 1.0:
        raise ModelFormatError(f"{arch}.rope.scaling.attn_factor is not supported: only 1.0 is")
    share = get(f"{arch}.{_LOG}", 0.0)
    if not isinstance(share, float) or share < 0:
        raise ModelFormatError(f"{arch}.{_LOG}={shown(share)} is no factor: download the file again")
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": get(
            f"{arch}.rope.scaling.original_context_length", get(f"{arch}.context_length")
        ),
        "mscale_all_dim": shortest(10 * share) if share else 1.0,
        "attention_factor": 1.0 if share else round(0.1 * math.log(factor) + 1, 12),
    }
    return {"rope_scaling": scaling}


def _experts(arch: str, header: GGUFHeader) -> dict[str, Any]:
    get = header.scalar
    groups, used = get(f"{arch}.expert_group_count", 1), get(f"{arch}.expert_group_used_count", 1)
    return {
        "n_routed_experts": get(f"{arch}.expert_count"),
        "num_experts_per_tok": get(f"{arch}.expert_used_count"),
        "moe_intermediate_size": get(f"{arch}.expert_feed_forward_length"),
        "n_shared_experts": get(f"{arch}.expert_shared_count", 0),
        "routed_scaling_factor": shortest(get(f"{arch}.expert_weights_scale", 1.0)) or 1.0,
        "n_group": max(groups, 1) if isinstance(groups, int) else groups,
        "topk_group": max(used, 1) if isinstance(used, int) else used,
        "first_k_dense_replace": get(f"{arch}.{_DENSE}", 0),
    }


def _read_v2(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """A softmax, whose weights are not normalised. llama.cpp scores groups otherwise than the model's authors."""
    made = _sizes(arch, header) | _rope(arch, header) | _experts(arch, header)
    if header.scalar(f"{arch}.expert_weights_norm", False):
        raise ModelFormatError(f"{arch}.expert_weights_norm=True is not supported with a softmax: only False is")
    return made | {"topk_method": "greedy" if made["n_group"] == made["topk_group"] else "group_limited_greedy"}


def _read_v3(arch: str, header: GGUFHeader) -> dict[str, Any]:
    normalised = {"norm_topk_prob": header.scalar(f"{arch}.expert_weights_norm", False)}
    return _sizes(arch, header) | _rope(arch, header) | _experts(arch, header) | normalised


def _read_mistral4(arch: str, header: GGUFHeader) -> dict[str, Any]:
    """llama.cpp's converter leaves out the factors on queries: such a file's context ends where the first one is."""
    get = header.scalar
    if _gating(arch, header) != _SOFTMAX:
        raise ModelFormatError(f"{arch}.{_GATING}={_SIGMOID} is not supported: only {_SOFTMAX} is")
    context, beta = get(f"{arch}.context_length"), shortest(get(f"{arch}.{_TEMPERATURE[0]}", 0.0))
    length = get(f"{arch}.{_TEMPERATURE[1]}", get(f"{arch}.rope.scaling.original_context_length", context))
    scaling = _rope(arch, header).get("rope_scaling", {"rope_type": "default"})
    if scaling["rope_type"] == "yarn":
        scaling |= {
            name: get(f"{arch}.rope.scaling.yarn_{name}", otherwise)
            for name, otherwise in (("beta_fast", 32.0), ("beta_slow", 1.0))
        }
    whole = all(isinstance(n, int) and n > 0 for n in (context, length))
    return _read_v3(arch, header) | {
        "rope_scaling": scaling | {"llama_4_scaling_beta": beta},
        "original_max_position_embeddings": length,
        "max_position_embeddings": min(context, length) if whole and not beta else context,
    }


def _family(name: str, read: Any, keys: tuple[str, ...] = _KEYS) -> GGUFFamily:
    return GGUFFamily(family=name, read=read, keys=keys, tensors=_TENSORS, whole_names=_WHOLE_NAMES, interleaved=True)


DEEPSEEK2: Mapping[str, GGUFFamily] = {
    "v2": _family("deepseek_v2", _read_v2),
    "v3": _family("deepseek_v3", _read_v3),
}
"""By the generation whose router the file has."""
MISTRAL4 = _family(
    "mistral4",
    _read_mistral4,
    (
        *(key for key in _KEYS if key != NEXTN),
        *_TEMPERATURE,
        *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
    ),
)
