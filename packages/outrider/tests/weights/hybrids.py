"""Small models with recurrent layers: transformers' folders, and GGUF files as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.weights.files import SCORES, TOKEN_TYPES, VOCABULARY, add_keys, add_tensors, finish

_DIMS: dict[str, Any] = {
    **{"vocab_size": len(VOCABULARY), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
_EXPERTS = {
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "shared_expert_intermediate_size": 32,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen35": ("Qwen3_5", {}),
    "qwen35moe": ("Qwen3_5Moe", _EXPERTS),
    "qwen3next": ("Qwen3Next", _EXPERTS),
}
"""By llama.cpp's architecture: the class of transformers, and its options beyond ``_DIMS``."""


def text_options(arch: str) -> dict[str, Any]:
    """Options of the text configuration."""
    return _DIMS | CASES[arch][1]


def build(arch: str) -> Any:
    """A model of transformers in float32, of which every part counts."""
    kind = CASES[arch][0]
    config = getattr(transformers, f"{kind}{'' if kind == 'Qwen3Next' else 'Text'}Config")(**text_options(arch))
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    randomise(model)
    return model


def randomise(model: Any) -> None:
    """Numbers with which a misplaced, forgotten or wrongly shifted tensor makes a difference."""
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if parameter.dim() > 1:
            parameter.data = noise * (8.0 if "embed" in name else 0.7) / parameter.shape[-1] ** 0.5
        else:
            parameter.data = (1.0 if "linear_attn.norm" in name else 0.0) + 0.3 * noise


def save(model: Any, folder: Path, *, head: bool = True, config: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    """Save a model, with a random draft head of the kind of its last layer; returns the tensors by their names."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    if head:
        tensors |= head_tensors(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | {"mtp_num_hidden_layers": int(head)} | dict(config or {})))
    return tensors


def head_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A draft head, by the names of published files."""
    last = next(f"{name.partition('layers.3.')[0]}layers.3." for name in tensors if "layers.3." in name)
    head = {name.removeprefix(last): tensor for name, tensor in tensors.items() if name.startswith(last)}
    made = {f"mtp.layers.0.{name}": torch.randn_like(tensor) * 0.3 for name, tensor in head.items()}
    made["mtp.fc.weight"] = torch.randn(64, 128)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        made[f"mtp.{name}.weight"] = torch.randn(64) * 0.3
    return made


def tiled(values: Tensor, size: int, axis: int = 0) -> Tensor:
    """Value heads of ``size`` numbers along ``axis``, of 3 for each of 2 key heads: 0 1 2 3 4 5 -> 0 3 1 4 2 5."""
    moved = values.movedim(axis, 0)
    heads = moved.reshape(2, 3, size, *moved.shape[1:]).swapaxes(0, 1)
    return heads.reshape(moved.shape).movedim(0, axis)


def tile(name: str, values: Tensor) -> Tensor:
    """A canonical tensor of a recurrent layer in the order of ``qwen35`` and ``qwen35moe`` files."""
    stem = name.rpartition("linear_attn.")[2].removesuffix(".weight")
    if stem in ("in_proj_qkv", "conv1d"):
        return torch.cat([values[:32], tiled(values[32:], 8)])  # queries and keys, then values
    if stem == "out_proj":
        return tiled(values, 8, axis=1)
    sizes = {"in_proj_z": 8, "in_proj_b": 1, "in_proj_a": 1, "dt_bias": 1, "A_log": 1, "decay": 1}
    return tiled(values, sizes[stem]) if stem in sizes else values


_HEAD = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}


def converted(arch: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As llama.cpp's converter writes the tensors of a saved model."""
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), 5)
    out: dict[str, Tensor] = {}
    stacked: dict[str, list[Tensor]] = {}
    for own, tensor in sorted(tensors.items()):
        name = own.replace("mtp.layers.0.", "model.layers.4.")
        if name.startswith("mtp."):
            name = f"blk.4.nextn.{_HEAD[name.split('.')[1]]}.weight"
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            tensor = tensor + 1
        if ".conv1d." in name:
            tensor = tensor.squeeze(1)
        if "linear_attn." in name and arch != "qwen3next":
            tensor = tile(name, tensor)
        for place, value in _parts(name, tensor).items():
            if ".experts." in place and place.split(".experts.")[1][0].isdecimal():
                before, _, after = place.partition(".experts.")
                stacked.setdefault(f"{before}.experts.{after.partition('.')[2]}", []).append(value)
            else:
                out[_gguf_name(names, place)] = value
    return out | {_gguf_name(names, place): torch.stack(parts) for place, parts in stacked.items()}


def _parts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """A tensor under the names that it is converted by."""
    if name.endswith("in_proj_qkvz.weight"):  # 2 key heads of q 8, k 8, v 24, z 24
        q, k, v, z = (part.flatten(0, 1) for part in tensor.unflatten(0, (2, 64)).split((8, 8, 24, 24), dim=1))
        stem = name.removesuffix("qkvz.weight")
        return {f"{stem}qkv.weight": torch.cat([q, k, v]), f"{stem}z.weight": z}
    if name.endswith("experts.gate_up_proj"):
        stem = name.removesuffix("gate_up_proj")
        gate, up = tensor.chunk(2, dim=1)
        return {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
    if name.endswith("experts.down_proj"):
        return {f"{name}.weight": tensor}
    if name.endswith(".A_log"):
        return {name: -torch.exp(tensor)}
    return {name.replace(".dt_bias", ".dt_proj.bias"): tensor}


def _gguf_name(names: Any, name: str) -> str:
    if name.startswith("blk."):  # of the draft head
        return name
    found: str | None = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def write_gguf(
    path: Path,
    arch: str,
    tensors: Mapping[str, Tensor | None],
    changes: Mapping[str, Any] | None = None,
    kind: str = "F32",
) -> None:
    """A GGUF file of converted tensors. ``changes``: keys to add or (None) to leave out; ``kind``: of the matrices."""
    heads = int(any(".nextn." in name for name in tensors))
    header: dict[str, Any] = {
        **{"context_length": 128, "embedding_length": 64, "feed_forward_length": 96, "block_count": 4 + heads},
        **{"attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16},
        **{"attention.value_length": 16, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e6},
        **{"rope.dimension_count": 4, "rope.dimension_sections": [2, 0, 0, 0], "full_attention_interval": 4},
        **{"ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 2, "ssm.time_step_rank": 6},
        **{"ssm.inner_size": 48, "attention.recurrent_layers": [True, True, True, False, *[False] * heads]},
        **{"nextn_predict_layers": heads or None, "tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": SCORES},
        **{"tokenizer.ggml.tokens": VOCABULARY, "tokenizer.ggml.token_type": TOKEN_TYPES},
        **{"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2},
    }
    if arch != "qwen35":
        header |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
        header |= {"expert_shared_feed_forward_length": 32}
    writer = gguf.GGUFWriter(path, arch)
    add_keys(writer, arch, header | dict(changes or {}))
    add_tensors(writer, tensors, kind)
    finish(writer)
