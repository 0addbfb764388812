"""Tiny models with draft heads of random weights, and transformers' answers for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from outrider.config import DTypeName
from outrider.models.config import ModelConfig
from outrider.models.factory import make_model
from outrider.models.native_llama import NativeLlamaModel

VOCABULARY = 64
_DIMENSIONS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}
_NAMES = {
    "layers.0.enorm": "mtp.pre_fc_norm_embedding",
    "layers.0.hnorm": "mtp.pre_fc_norm_hidden",
    "layers.0.eh_proj": "mtp.fc",
    "layers.0.post_norm": "mtp.norm",
}
"""transformers' names of a head's tensors outside its layer, and those of checkpoints."""


@dataclass(frozen=True)
class Reference:
    """A model and its head in transformers. They compute in float64, all but their norms: float32 strays further."""

    model: Any
    head: Any

    @torch.inference_mode()
    def row(self, tokens: Sequence[int], path: Sequence[int] = ()) -> Tensor:
        """The head's logits [vocab] behind ``tokens`` and the draft ``path``, all computed afresh."""
        known = self.model.model(torch.tensor([tokens[:-1]])).last_hidden_state
        text = torch.tensor([[*tokens, *path]])
        while True:
            rows = known.shape[1]
            state = MtpCache(config=self.model.config.get_mtp_config())
            ids, positions = text[:, 1 : 1 + rows], torch.arange(1, 1 + rows)[None]
            out = self.head.forward_layer(0, known, positions, state, input_ids=ids)
            if rows == text.shape[1] - 1:
                return cast("Tensor", self.head._project_to_logits(out)[0, -1])
            known = torch.cat([known, out[:, -1:]], dim=1)


FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "qwen3_5": (
        "Qwen3_5TextConfig",
        "Qwen3_5ForCausalLM",
        {"layer_types": ["full_attention"] * 2, "head_dim": 16, "partial_rotary_factor": 1.0},
    ),
}
"""transformers' classes, and a configuration's differences. All layers have attention: plain, or with a gate."""


@cache
def reference(family: str = "qwen3") -> Reference:
    """A model of two layers with attention, and its head."""
    torch.manual_seed(0)
    kind, made, own = FAMILIES[family]
    config = getattr(transformers, kind)(**_DIMENSIONS | own)
    config.num_mtp_layers, config.mtp_layer_types = 1, ["full_attention"]
    model = getattr(transformers, made)(config).eval()
    head = MtpModel(model, 1).eval()
    for part in (model, head):
        for name, parameter in part.named_parameters():
            if "norm" in name:
                parameter.data.add_(0.2 * torch.randn_like(parameter))
    for part in (model, head):
        part.double()
    head.tie_with_main_model(model)
    return Reference(model, head)


def tensors(made: Reference) -> dict[str, Tensor]:
    """Its weights under the names of checkpoints; norms as factors, to which this family's files are one short."""
    found = {name: value.detach() for name, value in made.model.state_dict().items()}
    for name, value in made.head.state_dict().items():
        place, _, kind = name.rpartition(".")
        if place in _NAMES:
            found[f"{_NAMES[place]}.{kind}"] = value.detach()
        elif "mtp_block" in place:
            found[f"mtp.{place.replace('mtp_block.', '')}.{kind}"] = value.detach()
    short = made.model.config.model_type.startswith("qwen3_5")
    return {name: (value + 1 if short and "norm" in name else value).float() for name, value in found.items()}


def dimensions(family: str) -> ModelConfig:
    """The configuration of the model of ``reference``."""
    d = _DIMENSIONS | FAMILIES[family][2]
    return ModelConfig(
        family=family,
        vocab_size=VOCABULARY,
        hidden_size=d["hidden_size"],
        intermediate_size=d["intermediate_size"],
        num_layers=d["num_hidden_layers"],
        num_heads=d["num_attention_heads"],
        num_kv_heads=d["num_key_value_heads"],
        head_dim=d["head_dim"],
        max_seq_len=d["max_position_embeddings"],
        rms_norm_eps=d["rms_norm_eps"],
        qk_norm=True,
        gated_attention=family == "qwen3_5",
        mtp_layers=1,
    )


@cache
def target(family: str = "qwen3", dtype: DTypeName = "float32") -> NativeLlamaModel:
    """The model of ``reference`` in the native library."""
    made = make_model(dimensions(family), tensors(reference(family)), dtype=dtype)
    assert isinstance(made, NativeLlamaModel)
    return made
