"""What transformers answers for a folder, and whether a change of the folder's files changes that.

The models are tiny, random and saved by transformers itself. An answer is the logits of a text, read whole with eager
attention, and those of the tokens that ``generate`` chooses, with the attention and the cache that are the default. A
tensor that is missing is a random number there, and makes another answer.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.weights.families import FAMILIES
from outrider_multimodal.vision_language import VISION_LANGUAGE
from outrider_multimodal.weights import ENCODER_DECODERS
from tests import bridge_members, small_models
from tests.encoder_decoders import bart, t5
from tests.vision_models import model as small_vision_language

VOCAB = 40
TOKENS = small_models.ids(40, VOCAB)
ABSENT = "absent"
"""As the value of a key or a tensor: take it away."""

Verdict = Literal["differs", "generates otherwise", "fails", "same"]

_DIMS: dict[str, Any] = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    **{"pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
}
_KINDS: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
_DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
}
_EXPERTS: dict[str, Any] = {
    **{"num_experts": 5, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 24, "shared_expert_intermediate_size": 16},
}
_LATENT: dict[str, Any] = {
    **{"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8},
    **{"v_head_dim": 16, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    **{"n_group": 3, "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 1},
}
transformers.AutoModelForCausalLM.register(transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True)
_LENGTH = {"original_max_position_embeddings": 8}
_ROUTED: dict[str, Any] = {
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1},
    **{"first_k_dense_replace": 1},
}
_MAMBA: dict[str, Any] = {
    **{"layer_types": ["linear_attention", "full_attention"], "mamba_n_heads": 4, "mamba_d_state": 8},
    **{"num_local_experts": 4, "shared_intermediate_size": 16},
}
_OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("gemma2", "gemma3_text", "olmo3", "exaone4"), _KINDS),
    **{family: {"sliding_window": 16} for family in ("mistral", "phi3", "starcoder2")},
    "gemma4_text": _KINDS
    | {
        **{"global_head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB},
    },
    "qwen3_5_text": _DELTA,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {
        **{"layer_types": ["conv", "full_attention"], "num_dense_layers": 1, "num_experts": 5},
        **{"num_experts_per_tok": 2, "moe_intermediate_size": 24},
    },
    **dict.fromkeys(("qwen3_next", "qwen3_5_moe_text"), _DELTA | _EXPERTS),
    **{"deepseek_v3": _LATENT, "glm4_moe_lite": _LATENT},
    "mistral4": _LATENT
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.5, **_LENGTH}},
    "deepseek_v2": _LATENT | {"topk_method": "group_limited_greedy"},
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "qwen2_moe": _EXPERTS,
    "olmoe": {"num_experts": 5, "num_experts_per_tok": 2},
    **{family: {"num_local_experts": 5, "num_experts_per_tok": 2} for family in ("granitemoe", "minimax_m2")},
    "granitemoehybrid": _MAMBA,
    "nemotron_h": {
        **{"layers_block_type": ["linear_attention", "full_attention", "moe", "mlp"], "head_dim": 8, "n_groups": 2},
        **{"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "moe_intermediate_size": 24},
        **{"moe_shared_expert_intermediate_size": 16, "n_routed_experts": 4, "time_step_min": 1e-30},
    },
    **dict.fromkeys(("glm4_moe", "dots1"), _ROUTED),
    "ernie4_5_moe": {"moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 24},
    "hunyuan_v1_moe": {"num_experts": 5, "moe_topk": 2},
    "llama4_text": {
        **{"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size_mlp": 40, "floor_scale": 5},
        **{"interleave_moe_layer_step": 2, "attention_chunk_size": 6, "no_rope_layers": [1, 0]},
    },
    "gpt_oss": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
}


@dataclass(frozen=True)
class Files:
    """A folder's files; or changes of them."""

    config: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)

    def with_changes(self, changes: Files) -> Files:
        return Files(
            _changed(self.config, changes.config),
            _changed(self.generation, changes.generation),
            _changed(self.tensors, changes.tensors),
        )

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.generation:
            (folder / "generation_config.json").write_text(json.dumps(self.generation))
        save_file(dict(self.tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return folder


def _changed(own: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**own, **changes}.items() if value is not ABSENT}


@cache
def saved(family: str) -> Files:
    """A small model, otherwise with transformers' defaults: of a family of ours, or as other tests make it."""
    if family in ENCODER_DECODERS:
        return files_of({"t5": t5, "bart": bart}[family]())
    if family in VISION_LANGUAGE:
        return files_of(small_vision_language(family))
    if family not in FAMILIES:
        return files_of(bridge_members.build(family))
    dims = _DIMS | _OWN.get(family, {}) | ({"head_dim": 8} if "head_dim" in FAMILIES[family].defaults else {})
    torch.manual_seed(0)
    return files_of(
        varied(transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **dims)))
    )


def varied(model: Any) -> Any:
    """Random weights of which every part counts: as initialised, biases and norms would do nothing."""
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if parameter.dim() > 1:
            parameter.data = noise * 0.3 if "embed" in name else noise / parameter.shape[-1] ** 0.5
        else:
            parameter.data = parameter.data + 0.2 * noise
    return model


def files_of(model: Any) -> Files:
    """What ``save_pretrained`` writes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        return Files(config, {}, load_file(folder / "model.safetensors"))


@torch.inference_mode()
def logits(folder: Path, *, trusted: bool = False) -> Tensor:
    """Of ``TOKENS``, [tokens, vocab]; of an encoder–decoder, of the first 9 after ``TOKENS``.

    Raises what transformers raises. ``trusted``: the folder's own code is run.
    """
    whole, ids = _load(folder, "eager", trusted), torch.tensor([TOKENS])
    text: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    if whole.config.is_encoder_decoder:
        text["decoder_input_ids"] = ids[:, :9]
    found: Tensor = whole(**text).logits[0]
    return found


@torch.inference_mode()
def generated(folder: Path, *, trusted: bool = False) -> Tensor:
    """Logits by which ``generate`` chooses 6 tokens after ``TOKENS``, and 6 after the first of them: [12, vocab]."""
    own, ids = _load(folder, None, trusted), torch.tensor([TOKENS])
    return torch.cat([_scores(own, ids), _scores(own, ids[:, :1])])


def _scores(model: Any, ids: Tensor) -> Tensor:
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=6,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return torch.stack([scores[0] for scores in made.scores])


def _load(folder: Path, attention: str | None, trusted: bool) -> Any:
    torch.manual_seed(5)  # of what transformers makes up for tensors that are not there
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    auto = {
        **dict.fromkeys(ENCODER_DECODERS, transformers.AutoModelForSeq2SeqLM),
        **dict.fromkeys(VISION_LANGUAGE, transformers.AutoModelForImageTextToText),
    }.get(kind, transformers.AutoModelForCausalLM)
    model = auto.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation=attention,
        local_files_only=True,
        trust_remote_code=trusted,
    )
    return model.eval()


def same(ours: Tensor, theirs: Tensor) -> bool:
    """But for rounding; forbidden tokens are -inf in both."""
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=1e-4, rtol=1e-4)


@cache
def logits_of(family: str) -> Tensor:
    """Of the model of ``saved``."""
    with tempfile.TemporaryDirectory() as name:
        return logits(saved(family).write(Path(name)))


def compare(before: Path, after: Path, *, trusted: bool = False) -> Verdict:
    """What becomes of transformers' answer to one folder in another."""
    try:
        if not same(logits(before), logits(after, trusted=trusted)):
            return "differs"
        return "same" if same(generated(before), generated(after, trusted=trusted)) else "generates otherwise"
    except Exception:  # noqa: BLE001 - whatever it is, there is no answer
        return "fails"
