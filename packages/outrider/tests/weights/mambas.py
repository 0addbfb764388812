"""Small models with Mamba-2: transformers' folders, and GGUF files as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from torch import Tensor

from tests.weights import recurrents
from tests.weights.files import VOCABULARY

_DIMS: dict[str, Any] = {
    **{"vocab_size": len(VOCABULARY), "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": 128},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None},
}
_GRANITE: dict[str, Any] = {
    **{"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention", *["linear_attention"] * 2]},
    **{"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "shared_intermediate_size": 96},
    **{"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2, "logits_scaling": 4.0},
}
_SSM = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 1,
    "ssm.time_step_rank": 8,
    "ssm.inner_size": 128,
}
_GRANITE_HEADER: dict[str, Any] = {
    **_SSM,
    **{"attention.head_count_kv": [0, 2, 0, 0], "attention.layer_norm_rms_epsilon": 1e-6},
    **{"embedding_scale": 3.0, "residual_scale": 0.5, "attention.scale": 0.2, "logit_scale": 4.0},
    **{"rope.scaling.finetuned": False, "expert_shared_feed_forward_length": 96},
}
_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 32}
_EXPERTS_HEADER = {"expert_count": 6, "expert_used_count": 3, "feed_forward_length": 32}


_NEMOTRON: dict[str, Any] = {
    **{
        "time_step_min": 1e-30,
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
    },
    **{"layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention", "mlp"]},
}
_NEMOTRON_HEADER: dict[str, Any] = {
    **_SSM,
    **{"ssm.group_count": 2, "block_count": 5, "attention.head_count_kv": [0, 0, 0, 2, 0]},
    **{"feed_forward_length": [0, 96, 0, 0, 96], "attention.key_length": 16, "attention.value_length": 16},
    **{"attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": 1e-5},
}
_MOE: dict[str, Any] = {
    **{"layers_block_type": ["moe", "linear_attention", "full_attention", "linear_attention", "moe"]},
    **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "routed_scaling_factor": 2.5},
    **{"moe_shared_expert_intermediate_size": 48},
}
_MOE_HEADER: dict[str, Any] = {
    **{"attention.head_count_kv": [0, 0, 2, 0, 0], "feed_forward_length": [32, 0, 0, 0, 32], "expert_count": 8},
    **{"expert_used_count": 3, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 48},
    **{"expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 1},
}


@dataclass(frozen=True)
class Case:
    arch: str
    kind: str
    """The class of transformers."""
    options: Mapping[str, Any]
    header: Mapping[str, Any]
    """Keys of GGUF files beyond those of ``recurrents.write_gguf``; empty: they cannot say it."""


CASES: dict[str, Case] = {
    "granitehybrid": Case("granitehybrid", "GraniteMoeHybrid", _GRANITE | {"num_local_experts": 0}, _GRANITE_HEADER),
    "granitehybrid with experts": Case(
        "granitehybrid",
        "GraniteMoeHybrid",
        _GRANITE | _EXPERTS | {"mamba_n_groups": 2},
        _GRANITE_HEADER | _EXPERTS_HEADER | {"ssm.group_count": 2},
    ),
    "nemotron_h": Case("nemotron_h", "NemotronH", _NEMOTRON, _NEMOTRON_HEADER),
    "nemotron_h with experts": Case("nemotron_h_moe", "NemotronH", _NEMOTRON | _MOE, _NEMOTRON_HEADER | _MOE_HEADER),
}
MORE: dict[str, Case] = {
    "granitehybrid that rotates": Case(
        "granitehybrid",
        "GraniteMoeHybrid",
        _GRANITE
        | {"num_local_experts": 0, "position_embedding_type": "rope", "attention_bias": True}
        | {"mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_d_conv": 3, "mamba_d_head": "auto"},
        {},
    ),
    "granite 4 without Mamba-2": Case(
        "granite",
        "GraniteMoeHybrid",
        _GRANITE | {"num_local_experts": 0, "position_embedding_type": "rope", "layer_types": ["full_attention"] * 4},
        {},
    ),
    "nemotron_h with experts in groups beside MLPs": Case(
        "nemotron_h_moe",
        "NemotronH",
        _NEMOTRON
        | _MOE
        | {"layers_block_type": ["full_attention", "linear_attention", "moe", "mlp"], "n_group": 4, "topk_group": 2}
        | {"norm_topk_prob": False, "use_conv_bias": False, "tie_word_embeddings": True},
        {},
    ),
    "nemotron_h with biases": Case(
        "nemotron_h", "NemotronH", _NEMOTRON | {"use_bias": True, "mlp_bias": True, "conv_kernel": 3}, {}
    ),
}
"""Options that GGUF files do not have, or have as another architecture's."""


def build(case: str) -> Any:
    """A model of transformers in float32, of which every part counts."""
    found = (CASES | MORE)[case]
    config = getattr(transformers, f"{found.kind}Config")(**_DIMS | dict(found.options))
    torch.manual_seed(0)
    model = getattr(transformers, f"{found.kind}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if parameter.dim() > 1 and "conv1d" not in name:
            parameter.data = noise * (8.0 if "embed" in name else 0.9) / parameter.shape[-1] ** 0.5
        else:
            parameter.data = (1.0 if name.endswith(("norm.weight", "norm_f.weight", ".D")) else 0.0) + 0.4 * noise
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.3 * torch.randn_like(buffer))
    return model


def _parts(name: str, tensor: Tensor, groups: int, experts: int) -> Iterator[tuple[str, Tensor]]:
    """A saved tensor as the converter cuts and turns it, under the names that it looks up."""
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    if name.endswith((".D", ".A_log")):
        yield name, (-torch.exp(tensor) if name.endswith("A_log") else tensor).reshape(-1, 1)
    elif name.endswith((".mamba.norm.weight", ".mixer.norm.weight")):
        yield name, tensor.reshape(groups, -1)
    elif name.endswith(("conv1d.weight", ".dt_bias")):
        yield name.replace(".dt_bias", ".dt_proj.bias"), tensor.squeeze(1) if tensor.dim() == 3 else tensor
    elif name.endswith((".q_proj.weight", ".k_proj.weight")):
        heads = 4 if ".q_proj." in name else 2
        yield name, tensor.unflatten(0, (heads, 2, -1)).swapaxes(1, 2).reshape(tensor.shape)
    elif name.endswith("_linear.weight"):
        stem, mlp, part = name.rsplit(".", 3)[:3]
        own = "block_sparse_moe.experts" if mlp == "block_sparse_moe" else "shared_expert" if experts else ""
        own = f"{stem}.mlp.{own.removeprefix('block_sparse_moe.')}.".replace("..", ".")
        if part == "output_linear":
            yield f"{own}down_proj.weight", tensor
        else:
            gate, up = tensor.chunk(2, dim=-2)
            yield from ((f"{own}gate_proj.weight", gate), (f"{own}up_proj.weight", up))
    else:
        yield name, tensor


def converted(case: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As llama.cpp's converter writes the tensors of a saved model."""
    found = CASES[case]
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == found.arch)
    names, out, experts = gguf.get_tensor_name_map(arch, 9), dict[str, Tensor](), dict[str, list[Tensor]]()
    for own in sorted(tensors):
        if ".mixer.experts." in own:
            before, _, part = own.removeprefix("backbone.").partition(".mixer.experts.")
            experts.setdefault(f"model.{before}.mlp.experts.{part.partition('.')[2]}", []).append(tensors[own])
    stacked = {name: torch.stack(parts) for name, parts in experts.items()}
    for own, tensor in ({n: t for n, t in tensors.items() if ".mixer.experts." not in n} | stacked).items():
        for part, value in _parts(own, tensor, found.header["ssm.group_count"], found.header.get("expert_count", 0)):
            name = names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert name is not None, part
            out[name] = value
    return out


def write_gguf(
    path: Path, case: str, tensors: Mapping[str, Tensor], changes: Mapping[str, Any] | None = None, kind: str = "F32"
) -> None:
    """A GGUF file of converted tensors: see ``recurrents.write_gguf``."""
    found = CASES[case]
    recurrents.write_gguf(path, found.arch, tensors, dict(found.header) | dict(changes or {}), kind)
