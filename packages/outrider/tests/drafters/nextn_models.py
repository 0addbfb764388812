"""Small models whose draft head stands behind their layers, by the names of published files and of llama.cpp's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.modeling_layers import MtpModel

from tests import families
from tests.drafters.mtp_models import Reference
from tests.weights import gguf_models, latents
from tests.weights.files import VOCABULARY

__all__ = ["build", "save", "write_glm4moe"]

LAYERS = 3
_NAMES = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "post_norm": "shared_head.norm"}
_HEADER = {
    **{"embedding_length": 64, "feed_forward_length": 112, "block_count": LAYERS + 1, "nextn_predict_layers": 1},
    **{"attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 8, "expert_count": 8},
    **{"expert_used_count": 3, "expert_feed_forward_length": 40, "expert_shared_count": 1},
    **{"expert_group_count": 4, "expert_group_used_count": 2, "vocab_size": len(VOCABULARY)},
}


@torch.no_grad()
def build(family: str) -> Reference:
    """A model of three layers and a random head, in float32."""
    ids = {"vocab_size": len(VOCABULARY), "bos_token_id": 1, "eos_token_id": 2}
    model = families.build("glm4-moe", **ids) if family == "glm4_moe" else latents.build(family)
    model.config.num_mtp_layers = 1
    model.set_experts_implementation("eager")
    head = MtpModel(model, 1).eval()
    torch.manual_seed(1)
    for name, tensor in [*head.named_parameters(), *head.named_buffers()]:
        if "inv_freq" not in name:
            noise = torch.randn_like(tensor)
            tensor.data = noise * 0.7 / tensor.shape[-1] ** 0.5 if tensor.dim() > 1 else 0.2 * noise
            tensor.data += 1.0 if "norm" in name else 0.0
    head.tie_with_main_model(model)
    return Reference(model, head)


def save(made: Reference, folder: Path) -> dict[str, Tensor]:
    """Save both in safetensors; returns the tensors by their names there."""
    tensors = latents.save(made.model, folder, config={"num_nextn_predict_layers": 1})
    for name, tensor in made.head.state_dict().items():
        stem, _, kind = name.removeprefix("layers.0.").rpartition(".")
        if stem in _NAMES:
            tensors[f"model.layers.{LAYERS}.{_NAMES[stem]}.{kind}"] = tensor.clone()
        elif stem.startswith("mtp_block."):
            tensors |= _by_expert(f"model.layers.{LAYERS}.{stem.removeprefix('mtp_block.')}.{kind}", tensor)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def _by_expert(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """transformers has the experts of a layer in one tensor, and gates in front of ups."""
    place, kind = name.rsplit(".", 1)
    if not place.endswith(".experts"):
        return {name: tensor.clone()}
    halves = {"down_proj": tensor}
    if kind == "gate_up_proj":
        halves = dict(zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=1), strict=True))
    return {
        f"{place}.{i}.{part}.weight": one.clone() for part, all_of in halves.items() for i, one in enumerate(all_of)
    }


def write_glm4moe(path: Path, tensors: dict[str, Any]) -> None:
    """A GGUF file of GLM-4.5 with its head, as llama.cpp's converter writes it."""
    gguf_models.write_case(path, "glm4moe", _HEADER, gguf_models.converted("glm4moe", tensors))
