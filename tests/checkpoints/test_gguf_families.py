"""GGUF files of every family: the model is that of the safetensors files, by the names of the ``gguf`` package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from outrider.checkpoints.families import FAMILIES
from outrider.checkpoints.hf_config import parse_config, to_hf_config
from outrider.checkpoints.weights import open_checkpoint
from outrider.checkpoints.weights.gguf import open_gguf
from outrider.checkpoints.weights.gguf_families import GGUF_FAMILIES
from outrider.checkpoints.weights.parts import find_parts
from outrider.errors import ModelFormatError
from tests.checkpoints.files import permute

_DIMS: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
}  # fmt: skip
_RMS, _LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "phi3": ("phi3", {"partial_rotary_factor": 0.5, "tie_word_embeddings": True}, {"rope.dimension_count": 4}),
    "granite": (
        "granite",
        {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 8.0},
        {"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.1, "logit_scale": 8.0},
    ),
    "smollm3": ("smollm3", {"rope_theta": 2e6}, {"rope.freq_base": 2e6}),
    "olmo2": ("olmo2", {}, {}),
    "starcoder2": ("starcoder2", {"norm_epsilon": 1e-4}, {_RMS: None, _LAYER: 1e-4}),
    "glm4": ("glm4", {"partial_rotary_factor": 0.5}, {"rope.dimension_count": 4}),
    "gemma": ("gemma", {}, {}),
    "gemma2": (
        "gemma2",
        {"query_pre_attn_scalar": 8, "sliding_window": 16, "attn_logit_softcapping": 40.0},
        {"attention.sliding_window": 16, "attn_logit_softcapping": 40.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": (
        "gemma3_text",
        {"query_pre_attn_scalar": 8, "sliding_window": 16, "num_hidden_layers": 7, "rope_theta": 1e6},
        {"attention.sliding_window": 16, "rope.freq_base": 1e6},
    ),
    "qwen3moe": (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24},
    ),
    "llama": (
        "mixtral",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_theta": 1e6},
        {"expert_count": 4, "expert_used_count": 2, "rope.freq_base": 1e6},
    ),
}
"""Architecture of llama.cpp: the family, what its config.json says, and what its header says."""


def write_folder(folder: Path, family: str, changes: dict[str, Any]) -> dict[str, Tensor]:
    raw = _DIMS | {"model_type": family} | changes
    (folder / "config.json").write_text(json.dumps(raw))
    kind, generator = FAMILIES[family], torch.Generator().manual_seed(0)
    shapes = find_parts(parse_config(raw), kind.own_name, interleaved=kind.interleaved)[1]
    tensors = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return tensors


def converted(arch: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As llama.cpp's converter writes them."""
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), 7)
    out: dict[str, Tensor] = {}
    stacked: dict[str, list[Tensor]] = {}
    for name, tensor in sorted(tensors.items()):
        if "gemma" in arch and name.endswith("norm.weight"):
            tensor = (tensor.float() + 1).bfloat16()
        if arch in ("llama", "granite", "smollm3") and ("q_proj" in name or "k_proj" in name):
            tensor = permute(tensor, 4 if "q_proj" in name else 2)
        if ".experts." in name:
            before, _, after = name.partition(".experts.")
            stacked.setdefault(f"{before}.experts.{after.partition('.')[2]}", []).append(tensor)
            continue
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        out[found] = tensor
    for name, parts in stacked.items():
        stem = name.removesuffix(".weight")
        found = names.get_name(stem)
        assert found is not None, name
        out[f"{found}.weight"] = torch.stack(parts)
    return out


def write_gguf(path: Path, arch: str, raw: dict[str, Any], keys: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    writer = gguf.GGUFWriter(path, arch)
    header: dict[str, Any] = {
        "context_length": 128, "embedding_length": 32, "block_count": raw.get("num_hidden_layers", 2),
        "feed_forward_length": 48, "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 8,
        "attention.value_length": 8, _RMS: 1e-5, "rope.freq_base": 10000.0,
    }  # fmt: skip
    for key, value in (header | keys).items():
        if isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{arch}.{key}", value)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("arch", CASES)
def test_it_is_the_model_of_the_safetensors_files(arch: str, tmp_path: Path) -> None:
    family, raw, keys = CASES[arch]
    tensors = write_folder(tmp_path, family, raw)
    write_gguf(tmp_path / "m.gguf", arch, raw, keys, converted(arch, tensors))
    ours, theirs = open_gguf(tmp_path / "m.gguf"), open_checkpoint(tmp_path)
    assert ours.config == theirs.config
    assert set(ours.tensors) == set(theirs.tensors)
    for name in theirs.tensors:
        assert torch.equal(ours.tensors[name].bfloat16(), theirs.tensors[name].bfloat16()), name
        stored = ours.stored[name]
        assert torch.equal(stored.numbers().bfloat16(), theirs.stored[name].numbers().bfloat16()), name
    assert parse_config(to_hf_config(ours.config)) == ours.config  # what is written beside the file


def test_every_architecture_has_a_case() -> None:
    assert GGUF_FAMILIES.keys() - {"qwen2", "qwen3"} == CASES.keys()  # see test_gguf


def test_a_scaling_of_phi3_in_tensors_is_refused(tmp_path: Path) -> None:
    tensors = converted("phi3", write_folder(tmp_path, "phi3", {}))
    write_gguf(tmp_path / "m.gguf", "phi3", {}, {}, tensors | {"rope_factors_long.weight": torch.ones(4)})
    with pytest.raises(ModelFormatError, match="rope_factors_long"):
        open_gguf(tmp_path / "m.gguf")
