"""Small random models of other families, by transformers' own classes and with what each does beyond a Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from outrider_transformers.calls import register
from outrider_transformers.check import bridged
from outrider_transformers.foreign import described
from outrider_transformers.model import WAYS, BridgedModel, Way
from outrider_transformers.network import Network

VOCAB = 96
_LARGEST = 10_000_000

_DIMS: dict[str, Any] = {
    **{"vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB, "max_position_embeddings": 128},
    **{"pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "is_decoder": True},
    **{"tie_word_embeddings": False, "sliding_window": 9, "attention_chunk_size": 12},
    # Width and depth, in the words of every family
    **{"hidden_size": 64, "d_model": 64, "n_embd": 64, "embed_dim": 64, "word_embed_proj_dim": 64},
    **{"intermediate_size": 96, "decoder_ffn_dim": 96, "ffn_dim": 96, "d_ff": 96, "dff": 96},
    **{"num_hidden_layers": 2, "decoder_layers": 2, "num_layers": 2, "n_layer": 2},
    **{"num_attention_heads": 4, "decoder_attention_heads": 4, "num_heads": 4, "n_head": 4},
    **{"num_key_value_heads": 2, "head_dim": 16, "attention_hidden_size": 64},
    # Experts
    **{"num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2},
    **{"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "n_group": 1, "topk_group": 1},
    "first_k_dense_replace": 1,
    # Latent attention
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12},
    # Recurrent layers
    **{"state_size": 8, "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_expand": 2},
    **{"mamba_n_groups": 1, "mamba_chunk_size": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
}
_LATENT: dict[str, Any] = {"head_dim": 8, "num_key_value_heads": 4}
_PADDED: dict[str, Any] = {"pad_token_id": 0, "max_position_embeddings": 130}
_NAMED: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_KINDS = ["sliding_attention", "full_attention"]
_MIXED = ["linear_attention", "full_attention"]
_DELTA: dict[str, Any] = {"layer_types": _MIXED}

OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            "axk1",
            "axk2",
            "deepseek_v32",
            "glm_moe_dsa",
            "longcat_flash",
            "minicpm3",
            "sarvam_mla",
            "youtu",
        ),
        _LATENT,
    ),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), _LATENT | {"v_head_dim": 16}),
    **dict.fromkeys(("roberta", "camembert", "data2vec-text", "xlm-roberta", "xlm-roberta-xl"), _PADDED),
    "roberta-prelayernorm": _PADDED,
    "afmoe": {"layer_types": _KINDS, "num_dense_layers": 1},
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 8},
    "cohere2": {"layer_types": _KINDS},
    "cwm": _NAMED,
    "exaone4": {"layer_types": _KINDS},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 9},
    "gpt_oss": {"layer_types": _KINDS},
    "gptj": {"rotary_dim": 8},
    "inkling2_text": {
        "layer_types": ["hybrid_sliding", "hybrid"],
        "swa_head_dim": 16,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "unpadded_vocab_size": VOCAB,
    },
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 0},
    "kimi_linear": {**_LATENT, "layer_types": _MIXED},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "llama4_text": {"no_rope_layers": [1, 0], "layer_types": ["chunked_attention", "full_attention"], "floor_scale": 4},
    "mamba2": {"num_heads": 4, "head_dim": 32, "n_groups": 1, "chunk_size": 8},
    "minimax": {"layer_types": _MIXED},
    "modernbert-decoder": {**_NAMED, "cls_token_id": 3, "sep_token_id": 4, "layer_types": _KINDS},
    "nemotron_h": {"time_step_min": 1e-30},
    "olmo_hybrid": {"layer_types": _MIXED},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": _DELTA,
    "qwen3_next": _DELTA,
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 64},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": _KINDS * 2,
        "num_kv_shared_layers": 2,
        "laurel_rank": 8,
        "hidden_size_per_layer_input": 8,
        "activation_sparsity_pattern": None,
    },
    "xlm": {"pad_token_id": 0},
    "xlstm": {"qk_dim_factor": 1.0},
    "zaya": {"num_experts_per_tok": 1},
}
_ABSENT = {"falcon": ("head_dim",), "xlstm": ("v_head_dim",)}
"""What a family's configuration shows, but does not take."""


def config_of(name: str) -> Any:
    """The configuration of a small member of a family."""
    kind = CONFIG_MAPPING[name]
    default = kind()
    given: dict[str, Any] = {}
    for key, value in _DIMS.items():
        own = kind.attribute_map.get(key, key)
        known = key in kind.attribute_map or _has(default, key)
        if (
            known
            and key not in _ABSENT.get(name, ())
            and not (key == "sliding_window" and default.sliding_window is None)
        ):
            given.setdefault(own, value)
    return kind(**given | OWN.get(name, {}))


def _has(config: Any, key: str) -> bool:
    try:
        return hasattr(config, key)
    except ValueError:  # configurations of mixed layers refuse to name one
        return False


def build(name: str, *, seed: int = 0, share: float = 0.0) -> Any:
    """A model of transformers, in float32, whose every part counts: as initialised, biases and norms would not.

    ``share``: of other weights, for a draft model that agrees often and not always.
    """
    config = config_of(name)
    config.forced_eos_token_id = None  # the last token of BART's ``generate``
    config._attn_implementation = "eager"
    kind = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name])
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind(config).parameters())
    if size > _LARGEST:
        raise ValueError(f"the smallest {name} that is known here has {size:,} parameters")
    torch.manual_seed(seed)
    model = kind(config).eval()
    for parameter_name, parameter in model.named_parameters():
        noise = (1 - share) * torch.randn_like(parameter) + share * torch.randn_like(parameter)
        if parameter.dim() < 2:
            parameter.data += 0.1 * noise
        elif "embed" in parameter_name or "wte" in parameter_name:
            parameter.data = noise
        else:
            parameter.data = 1.2 * noise / parameter.shape[-1] ** 0.5
    return model.requires_grad_(False)


def bridge(module: Any, *ways: Way) -> BridgedModel:
    """The model as the engine runs it, in the first of ``ways`` (all, if there are none) that is right."""
    register()
    return bridged(Network(module), described(module.config, Path()), ways or WAYS)


def like(model: BridgedModel, module: Any) -> BridgedModel:
    """Another model of a family, run as one that was checked."""
    network = Network(module)
    network.tells_positions = model.network.tells_positions
    return BridgedModel(network, described(module.config, Path()), model.way)
