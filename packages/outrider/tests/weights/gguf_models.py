"""A tiny GGUF model of every architecture, with the keys and tensors that llama.cpp's converter writes, and changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from outrider.weights.families import FAMILIES
from outrider.weights.files.parts import find_parts
from outrider.weights.hf_config.config import parse_config
from tests.weights.files import SCORES, TOKEN_TYPES, VOCABULARY, add_keys, add_tensors, finish, permute

_DIMS: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
}  # fmt: skip
_RMS, _LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
_COUNTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24}
_GRANITE: tuple[dict[str, Any], dict[str, Any]] = (
    {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 8.0},
    {"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.1, "logit_scale": 8.0},
)
_DEEPSEEK: tuple[dict[str, Any], dict[str, Any]] = (
    _MOE
    | {"n_routed_experts": 4, "n_shared_experts": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True}
    | {"first_k_dense_replace": 1, "num_hidden_layers": 3},
    _COUNTS
    | {"expert_shared_count": 2, "expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2}
    | {"leading_dense_block_count": 1},
)
ARCHS = {"mixtral": "llama", "olmo3": "olmo2"}
"""Architectures of llama.cpp by name in ``CASES``, where they differ."""
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {"rope.dimension_count": 8}),
    "qwen2": ("qwen2", {"rope_theta": 1e6}, {"rope.freq_base": 1e6}),
    "qwen3": ("qwen3", {"rope_theta": 1e6}, {"rope.freq_base": 1e6}),
    "phi3": (
        "phi3",
        {"partial_rotary_factor": 0.5, "tie_word_embeddings": True},
        {"rope.dimension_count": 4, "rope.scaling.original_context_length": 128, "attention.sliding_window": 0},
    ),
    "granite": (
        "granite",
        {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 8.0},
        {"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.1, "logit_scale": 8.0},
    ),
    "smollm3": ("smollm3", {"rope_theta": 2e6, "num_hidden_layers": 4}, {"rope.freq_base": 2e6}),
    "olmo2": ("olmo2", {}, {}),
    "olmo3": (
        "olmo3",
        {
            "sliding_window": 16,
            "num_hidden_layers": 4,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                    "rope_theta": 5e5,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            },
        },
        {
            "attention.sliding_window": 16,
            "attention.sliding_window_pattern": [True, True, True, False],
            "rope.freq_base": 5e5,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
            "rope.scaling.yarn_ext_factor": 1.0,
        },
    ),
    "seed_oss": ("seed_oss", {"rope_theta": 1e7}, {"rope.freq_base": 1e7}),
    "ernie4_5": ("ernie4_5", {"rope_theta": 5e5}, {"rope.freq_base": 5e5}),
    "exaone4": ("exaone4", {"sliding_window": None, "rope_theta": 1e6}, {"rope.freq_base": 1e6}),
    "hunyuan-dense": ("hunyuan_v1_dense", {"rope_theta": 3e5}, {"rope.freq_base": 3e5}),
    "mistral3": (
        "ministral3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 16.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
            }
        },
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_beta_fast": 16.0,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.3,
        },
    ),
    "starcoder2": ("starcoder2", {"norm_epsilon": 1e-4}, {_RMS: None, _LAYER: 1e-4}),
    "glm4": ("glm4", {"partial_rotary_factor": 0.5}, {"rope.dimension_count": 4}),
    "gemma": ("gemma", {}, {"tokenizer.ggml.add_space_prefix": False}),
    "gemma2": (
        "gemma2",
        {"query_pre_attn_scalar": 8, "sliding_window": 16, "attn_logit_softcapping": 40.0},
        {"attention.sliding_window": 16, "attn_logit_softcapping": 40.0, "final_logit_softcapping": 30.0}
        | {"tokenizer.ggml.add_space_prefix": False},
    ),
    "gemma3": (
        "gemma3_text",
        {"query_pre_attn_scalar": 8, "sliding_window": 16, "num_hidden_layers": 7, "rope_theta": 1e6},
        {"attention.sliding_window": 16, "rope.freq_base": 1e6, "tokenizer.ggml.add_space_prefix": False},
    ),
    "qwen3moe": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24},
    ),
    "mixtral": (
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_theta": 1e6},
        {"expert_count": 4, "expert_used_count": 2, "rope.freq_base": 1e6},
    ),
    "qwen2moe": (
        "qwen2_moe",
        _MOE | {"shared_expert_intermediate_size": 40, "num_experts": 4},
        {**_COUNTS, "expert_shared_feed_forward_length": 40},
    ),
    "olmoe": (
        "olmoe",
        {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4},
        {"expert_count": 4, "expert_used_count": 2, "attention.head_count_kv": 4},
    ),
    "granitemoe": (
        "granitemoe",
        _GRANITE[0] | {"num_local_experts": 4, "num_experts_per_tok": 2},
        _GRANITE[1] | {"expert_count": 4, "expert_used_count": 2},
    ),
    "minimax-m2": (
        "minimax_m2",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "partial_rotary_factor": 0.5, "rope_theta": 5e6},
        _COUNTS
        | {"expert_feed_forward_length": 48, "expert_gating_func": 2, "rope.dimension_count": 4}
        | {"rope.freq_base": 5e6},
    ),
    "glm4moe": (
        "glm4_moe",
        _DEEPSEEK[0] | {"partial_rotary_factor": 0.5, "use_qk_norm": True, "attention_bias": True},
        _DEEPSEEK[1] | {"rope.dimension_count": 4},
    ),
    "dots1": (
        "dots1",
        _DEEPSEEK[0] | {"num_key_value_heads": 4, "sliding_window": None},
        _DEEPSEEK[1] | {"attention.head_count_kv": 4},
    ),
    "ernie4_5-moe": (
        "ernie4_5_moe",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24, "num_hidden_layers": 3, "rope_theta": 5e5},
        _COUNTS
        | {"expert_shared_count": 2, "expert_shared_feed_forward_length": 48, "interleave_moe_layer_step": 1}
        | {"leading_dense_block_count": 1, "rope.freq_base": 5e5},
    ),
    "hunyuan-moe": (
        "hunyuan_v1_moe",
        {"num_experts": 4, "moe_topk": 2, "rope_theta": 3e5},
        _COUNTS
        | {"expert_feed_forward_length": 48, "expert_shared_count": 1, "expert_shared_feed_forward_length": 48}
        | {"rope.freq_base": 3e5},
    ),
}
"""By name: the family, what its config.json says, and what its header says."""


@lru_cache(maxsize=1)
def _made(name: str) -> dict[str, Tensor]:
    return converted(name, tensors_of(name))


def arch_of(name: str) -> str:
    return ARCHS.get(name, name)


def raw_config(name: str) -> dict[str, Any]:
    """``config.json`` of a case."""
    family, raw, _ = CASES[name]
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    return _DIMS | {"vocab_size": len(VOCABULARY), "model_type": family, **ids} | raw


def tensors_of(name: str) -> dict[str, Tensor]:
    """A case's tensors by the family's own names; numpy's old generator gives the same numbers for ever."""
    raw = raw_config(name)
    kind, generator = FAMILIES[raw["model_type"]], np.random.RandomState(0)
    shapes = find_parts(parse_config(raw), kind.own_name, interleaved=kind.interleaved)[1]
    made = {}
    for own, shape in shapes.items():
        values = generator.randn(*shape)
        if "norm" in own and own.endswith("weight"):
            values = 1 - kind.norm_offset + 0.2 * values
        elif own.endswith("bias"):
            values *= 0.5
        else:
            values *= (1.0 if "embed" in own else 1.5) / shape[-1] ** 0.5
        made[own] = torch.from_numpy(values).bfloat16()
    return made


def converted(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As llama.cpp's converter writes them."""
    arch = arch_of(name)
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), 7)
    out: dict[str, Tensor] = {}
    stacked: dict[str, list[Tensor]] = {}
    for own, tensor in sorted(tensors.items()):
        if "gemma" in arch and own.endswith("norm.weight"):
            tensor = (tensor.float() + 1).bfloat16()
        own = own.replace("e_score_correction_bias", "e_score_correction.bias")
        if "layers.2.mlp.moe_statics" in own:  # as tools that quantise a converted file write it
            tensor = tensor.reshape(-1)
        if own.endswith("block_sparse_moe.input_linear.weight"):  # Granite's: gates and ups, one behind the other
            block = f"blk.{own.split('.')[2]}.ffn_"
            out |= {f"{block}{x}_exps.weight": half for x, half in zip(("gate", "up"), tensor.chunk(2, 1), strict=True)}
            continue
        if arch in ("llama", "granite", "granitemoe", "smollm3", "mistral3") and ("q_proj" in own or "k_proj" in own):
            tensor = permute(tensor, 4 if "q_proj" in own else 2)
        if ".experts." in own:
            before, _, after = own.partition(".experts.")
            stacked.setdefault(f"{before}.experts.{after.partition('.')[2]}", []).append(tensor)
            continue
        found = names.get_name(own, try_suffixes=(".weight", ".bias"))
        assert found is not None, own
        out[found] = tensor
    for own, parts in stacked.items():
        found = names.get_name(own.removesuffix(".weight"))
        assert found is not None, own
        out[f"{found}.weight"] = torch.stack(parts)
    return out


def write_case(
    path: Path, name: str, changes: Mapping[str, Any] | None = None, extra: Mapping[str, Tensor | None] | None = None
) -> None:
    """Write a case to ``path``. ``changes``: keys, of the architecture unless they begin with ``general.``,
    ``tokenizer.`` or ``split.``, to add or (None) to leave out. ``extra``: likewise, tensors.
    """
    arch, keys = arch_of(name), CASES[name][2]
    writer = gguf.GGUFWriter(path, arch)
    header: dict[str, Any] = {
        "context_length": 128, "embedding_length": 32, "block_count": raw_config(name)["num_hidden_layers"],
        "feed_forward_length": 48, "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 8,
        "attention.value_length": 8, _RMS: 1e-5, "rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": VOCABULARY, "tokenizer.ggml.scores": SCORES,
        "tokenizer.ggml.token_type": TOKEN_TYPES, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    }  # fmt: skip
    add_keys(writer, arch, header | keys | dict(changes or {}))
    add_tensors(writer, {**_made(name), **(extra or {})})
    finish(writer)
