"""Small models with short convolutions or Mamba-2: transformers' folders, and GGUF files as llama.cpp's converter
writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from tests.weights.files import SCORES, TOKEN_TYPES, VOCABULARY, add_keys, add_tensors, finish

_DIMS: dict[str, Any] = {
    **{"vocab_size": len(VOCABULARY), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None},
}
_KINDS = {"layer_types": ["conv", "full_attention", "conv", "conv"]}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "num_dense_layers": 1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("Lfm2", _KINDS | {"block_auto_adjust_ff_dim": False}),
    "lfm2moe": ("Lfm2Moe", _KINDS | _EXPERTS),
}
"""By llama.cpp's architecture: the class of transformers, and its options beyond ``_DIMS``."""
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2 with biases": (
        "Lfm2",
        {"full_attn_idxs": [1, 3], "conv_bias": True, "conv_L_cache": 4}
        | {"block_ff_dim": 160, "block_ffn_dim_multiplier": 1.3, "block_multiple_of": 16},
    ),
    "lfm2moe with a factor": (
        "Lfm2Moe",
        _KINDS | _EXPERTS | {"conv_bias": True, "norm_topk_prob": False, "routed_scaling_factor": 1.5},
    ),
    "lfm2moe without a bias": ("Lfm2Moe", _KINDS | _EXPERTS | {"num_dense_layers": 0, "use_expert_bias": False}),
}
"""Options that GGUF files do not have."""
_SHORT: dict[str, Any] = {"attention.head_count_kv": [0, 2, 0, 0], "shortconv.l_cache": 3, "rope.freq_base": 1e6}
_HEADER: dict[str, dict[str, Any]] = {
    "lfm2": _SHORT,
    "lfm2moe": _SHORT
    | {"expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 64}
    | {"leading_dense_block_count": 1, "expert_gating_func": 2},
}
_EXPERT = re.compile(r"\.experts\.\d+\.")


def build(case: str) -> Any:
    """A model of transformers in float32, of which every part counts."""
    kind, options = (CASES | MORE)[case]
    config = getattr(transformers, f"{kind}Config")(**_DIMS | options)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if parameter.dim() > 1:
            parameter.data = noise * (8.0 if "embed" in name else 0.9) / parameter.shape[-1] ** 0.5
        else:
            parameter.data = (1.0 if "norm" in name else 0.0) + 0.3 * noise
    for name, buffer in model.named_buffers():
        if name.endswith("expert_bias"):
            buffer.copy_(0.3 * torch.randn_like(buffer))
    return model


def save(model: Any, folder: Path) -> dict[str, Tensor]:
    """Save a model; returns the tensors by their names."""
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def _stacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with those of a layer's experts in one, and the bias of its router with a suffix."""
    parts: dict[str, list[Tensor]] = {}
    for own in sorted(tensors):
        name = own.replace(".expert_bias", ".expert_bias.bias")
        if _EXPERT.search(own):
            name = _EXPERT.sub(".experts.", own).removeprefix("model.")
        parts.setdefault(name, []).append(tensors[own])
    return {name: torch.stack(found) if ".experts." in name else found[0] for name, found in parts.items()}


def converted(arch: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As llama.cpp's converter writes the tensors of a saved model."""
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), 4)
    out: dict[str, Tensor] = {}
    for own, tensor in _stacked(tensors).items():
        found = names.get_name(own, try_suffixes=(".weight", ".bias"))
        assert found is not None, own
        out[found] = tensor.squeeze(1) if ".conv" in own and tensor.dim() == 3 else tensor
    return out


def write_gguf(
    path: Path, arch: str, tensors: Mapping[str, Tensor], changes: Mapping[str, Any] | None = None, kind: str = "F32"
) -> None:
    """A GGUF file of converted tensors. ``changes``: keys to add or (None) to leave out; ``kind``: of the matrices."""
    header: dict[str, Any] = {
        **{"context_length": 128, "embedding_length": 64, "feed_forward_length": 96, "block_count": 4},
        **{"attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": len(VOCABULARY)},
        **{"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": SCORES, "tokenizer.ggml.tokens": VOCABULARY},
        **{
            "tokenizer.ggml.token_type": TOKEN_TYPES,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        },
    }
    writer = gguf.GGUFWriter(path, arch)
    add_keys(writer, arch, header | _HEADER.get(arch, {}) | dict(changes or {}))
    add_tensors(writer, tensors, kind)
    finish(writer)
