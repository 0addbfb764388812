"""Small models that attend to latents: transformers' folders, and GGUF files as llama.cpp's converter writes them."""

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

_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
_DIMS: dict[str, Any] = {
    **{"vocab_size": len(VOCABULARY), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128, "moe_intermediate_size": 32},
    **{"q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 16},
    **{"n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2, "routed_scaling_factor": 1.5},
    **{"rms_norm_eps": 1e-6, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": (
        "DeepseekV2",
        {
            **{"q_lora_rank": None, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2},
            "topk_method": "group_limited_greedy",
            "rope_parameters": _YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **{"first_k_dense_replace": 1, "n_group": 4, "topk_group": 2},
            "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        {"mlp_layer_types": ["dense", "sparse", "sparse"], "rms_norm_eps": 1e-5, "n_group": 1, "topk_group": 1},
    ),
    "mistral4": (
        "Mistral4",
        {
            **{"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
            "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3},
        },
    ),
}
"""By family: the class of transformers, and its options beyond ``_DIMS``."""


def build(name: str) -> Any:
    """A model of transformers in float32, of which every part counts."""
    kind, own = CASES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**(_DIMS | own))
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for place, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if parameter.dim() > 1:
            parameter.data = noise * (8.0 if "embed" in place else 0.7) / parameter.shape[-1] ** 0.5
        else:
            parameter.data = 1.0 + 0.3 * noise
    for place, buffer in model.named_buffers():
        if place.endswith("e_score_correction_bias"):
            buffer.data = 0.2 * torch.randn_like(buffer)
    return model


def save(model: Any, folder: Path, *, head: bool = False, config: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    """Save a model, with a random draft head behind its layers; returns the tensors by their names."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    if head:
        tensors |= head_tensors(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    said = json.loads((folder / "config.json").read_text())
    own = {"num_nextn_predict_layers": int(head)} | dict(config or {})
    (folder / "config.json").write_text(json.dumps(said | own))
    return tensors


def head_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A draft head, by the names of published files: they repeat embedding and LM head."""
    last, place = "model.layers.2.", "model.layers.3."
    made = {place + n.removeprefix(last): torch.randn_like(t) * 0.2 for n, t in tensors.items() if n.startswith(last)}
    made = {name: 1 + tensor if "norm" in name else tensor for name, tensor in made.items()}
    made[f"{place}eh_proj.weight"] = torch.randn(64, 128) / 128**0.5
    for name in ("enorm", "hnorm", "shared_head.norm"):
        made[f"{place}{name}.weight"] = 1 + torch.randn(64) * 0.3
    made[f"{place}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    return made | {f"{place}shared_head.head.weight": tensors["lm_head.weight"].clone()}


_HEAD = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm"}


def converted(tensors: Mapping[str, Tensor], *, older: bool = False) -> dict[str, Tensor]:
    """As llama.cpp's converter writes the tensors of a saved model, without its head's copies of others.

    ``older``: with the rows for keys and values in one matrix.
    """
    stacks = any(name.endswith("experts.gate_up_proj") for name in tensors)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MISTRAL4 if stacks else gguf.MODEL_ARCH.DEEPSEEK2, 4)
    out: dict[str, Tensor] = {}
    stacked: dict[str, list[Tensor]] = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: [len(item[0]), item[0]]):
        own = name.removeprefix("model.layers.3.").removesuffix(".weight")
        if name.startswith("model.layers.3.") and (own in _HEAD or own in ("embed_tokens", "shared_head.head")):
            out |= {f"blk.3.nextn.{_HEAD[own]}.weight": tensor} if own in _HEAD else {}
        elif name.endswith(("experts.gate_up_proj", "experts.down_proj")):  # stacked in the folder too
            out[_gguf_name(names, name) + ".weight"] = tensor
        elif ".experts." in name:
            before, _, after = name.partition(".experts.")
            stacked.setdefault(f"{before}.experts.{after.partition('.')[2]}", []).append(tensor)
        elif name.endswith("kv_b_proj.weight") and not older:
            keys, values = tensor.unflatten(0, (4, -1)).split((24, 16), dim=1)
            out[_gguf_name(names, name.replace("kv_b", "k_b"))] = keys.transpose(1, 2)
            out[_gguf_name(names, name.replace("kv_b", "v_b"))] = values
        else:
            out[_gguf_name(names, name.replace("e_score_correction_bias", "e_score_correction.bias"))] = tensor
    return out | {_gguf_name(names, place): torch.stack(parts) for place, parts in stacked.items()}


def _gguf_name(names: Any, name: str) -> str:
    found: str | None = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def write_gguf(
    path: Path,
    family: str,
    tensors: Mapping[str, Tensor],
    changes: Mapping[str, Any] | None = None,
    kind: str = "F32",
) -> None:
    """A GGUF file of converted tensors. ``changes``: keys to add or (None) to leave out; ``kind``: of the matrices."""
    heads, options = int(any(".nextn." in name for name in tensors)), _DIMS | CASES[family][1]
    older = "blk.0.attn_kv_b.weight" in tensors
    header: dict[str, Any] = {
        **{"context_length": 128, "embedding_length": 64, "feed_forward_length": 96, "block_count": 3 + heads},
        **{"attention.head_count": 4, "attention.head_count_kv": 4 if older else 1, "vocab_size": len(VOCABULARY)},
        **{"attention.key_length": 32 if older else 40, "attention.value_length": 16 if older else 32},
        **{"attention.key_length_mla": None if older else 32, "attention.value_length_mla": None if older else 16},
        **{"attention.q_lora_rank": options["q_lora_rank"], "attention.kv_lora_rank": 32, "rope.dimension_count": 8},
        **{"attention.layer_norm_rms_epsilon": options["rms_norm_eps"], "leading_dense_block_count": 1},
        **{"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32, "expert_shared_count": 2},
        **{"expert_weights_scale": 1.5, "expert_weights_norm": None if family == "deepseek_v2" else True},
        **{"expert_group_count": options["n_group"], "expert_group_used_count": options["topk_group"]},
        **{"expert_gating_func": 1 if family in ("deepseek_v2", "mistral4") else 2, "rope.freq_base": 1e4},
        **{"nextn_predict_layers": heads or None, "tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": SCORES},
        **{"tokenizer.ggml.tokens": VOCABULARY, "tokenizer.ggml.token_type": TOKEN_TYPES},
        **{"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2},
    }
    if "rope_parameters" in options:
        header |= {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 32}
        header["rope.scaling.yarn_log_multiplier"] = 0.1 * options["rope_parameters"]["mscale_all_dim"]
    if family == "mistral4":
        header |= {"attention.temperature_scale": 0.3, "attention.temperature_length": 32}
    arch = "mistral4" if family == "mistral4" else "deepseek2"
    writer = gguf.GGUFWriter(path, arch)
    add_keys(writer, arch, header | dict(changes or {}))
    add_tensors(writer, tensors, kind)
    finish(writer)
