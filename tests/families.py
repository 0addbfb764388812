"""Small random models of every family, by transformers' own classes: what they do beyond Llama is in each of them."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from outrider.models.config import ModelConfig
from outrider.weights.hf_config.config import parse_config

VOCAB = 96

_DIMS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.7, 2.0],
    "long_factor": [2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
}
_ALPHA = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
_TEMPERATURE = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
    "llama_4_scaling_beta": 0.3,
}
_SCOUT = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 1.0,
    "original_max_position_embeddings": 64,
}
_LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
_KINDS = ["sliding_attention", "full_attention"]
_BY_KIND = {"sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.1,
    "logits_scaling": 4.0,
}
_DEEPSEEK = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
}
_NO_IDS = {"bos_token_id": None, "eos_token_id": None}

MEMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3": ("Phi3", {"sliding_window": 20}),
    "phi4-mini": (
        "Phi3",
        {
            "max_position_embeddings": 512,
            "original_max_position_embeddings": 128,
            "rope_parameters": _LONGROPE | {"partial_rotary_factor": 0.75},
            "tie_word_embeddings": True,
        },
    ),
    "granite": (
        "Granite",
        {
            **_GRANITE,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "olmo2": ("Olmo2", {"num_key_value_heads": 4}),
    "olmo3": (
        "Olmo3",
        {
            "sliding_window": 20,
            "layer_types": _KINDS,
            "rope_parameters": {"full_attention": _YARN | {"rope_theta": 5e5}, **_BY_KIND},
        },
    ),
    "seed-oss": ("SeedOss", {"head_dim": 16, "attention_out_bias": True, "mlp_bias": True}),
    "ernie4.5": ("Ernie4_5", {"head_dim": 16, "use_bias": True}),
    "exaone4": ("Exaone4", {"sliding_window": 20, "layer_types": _KINDS}),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 16, "attention_bias": True, "rope_parameters": _ALPHA}),
    "ministral3": ("Ministral3", {"head_dim": 16, "rope_parameters": _TEMPERATURE}),
    "llama4": (
        "Llama4Text",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "intermediate_size": 40,
            "intermediate_size_mlp": 112,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 12,
            "floor_scale": 6,
            "attn_scale": 0.4,
            "rope_parameters": _SCOUT,
        },
    ),
    "starcoder2": ("Starcoder2", {"norm_epsilon": 1e-5, "sliding_window": 20}),
    "glm": ("Glm", {"head_dim": 16}),
    "glm4": ("Glm4", {"head_dim": 24, "attention_bias": False}),
    "gemma": ("Gemma", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 24,
            "query_pre_attn_scalar": 12,
            "sliding_window": 20,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 6.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 16,
            "sliding_window": 20,
            "layer_types": _KINDS,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                **_BY_KIND,
            },
            "tie_word_embeddings": True,
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 20}),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "num_hidden_layers": 3,
            "mlp_only_layers": [1],
        },
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 48,
        },
    ),
    "olmoe": (
        "Olmoe",
        {"num_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 40, "num_key_value_heads": 4, **_NO_IDS},
    ),
    "granite-moe": (
        "GraniteMoe",
        {
            **_GRANITE,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "intermediate_size": 40,
        },
    ),
    "minimax-m2": (
        "MiniMaxM2",
        {
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "intermediate_size": 40,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
            **_NO_IDS,
        },
    ),
    "glm4-moe": ("Glm4Moe", _DEEPSEEK | {"head_dim": 16, "attention_bias": True, "use_qk_norm": True}),
    "dots1": (
        "Dots1",
        _DEEPSEEK
        | {"n_shared_experts": 2, "routed_scaling_factor": 1.2, "norm_topk_prob": True, "n_group": 1, "topk_group": 1},
    ),
    "ernie4-5-moe": (
        "Ernie4_5_Moe",
        {
            "moe_num_experts": 6,
            "moe_k": 3,
            "moe_intermediate_size": 40,
            "moe_norm_min": 0.5,
            "num_hidden_layers": 3,
        },
    ),
    "hunyuan-moe": (
        "HunYuanMoEV1",
        {"head_dim": 16, "num_experts": 6, "moe_topk": [3, 3], "rope_parameters": _ALPHA},
    ),
    "gpt-oss": (
        "GptOss",
        {
            "head_dim": 16,
            "sliding_window": 20,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "swiglu_limit": 1.5,
            "rope_parameters": _YARN | {"rope_theta": 150000.0, "truncate": False},
        },
    ),
}
"""Names of transformers' classes, and what their configuration says beyond the dimensions."""


def config_of(member: str) -> ModelConfig:
    """What we read of a member's ``config.json``."""
    kind, own = MEMBERS[member]
    return parse_config(getattr(transformers, f"{kind}Config")(**(_DIMS | own)).to_dict())


def build(member: str, **own: Any) -> Any:
    """A model of transformers, in float32, whose every part counts: as initialised, biases and norms would not.

    ``own``: of the configuration, beyond the member's.
    """
    kind, changes = MEMBERS[member]
    model_class = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")
    config = getattr(transformers, f"{kind}Config")(**(_DIMS | changes | own))
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = model_class(config).eval()
    small = 8.0 / 64**0.5 if kind.startswith("Gemma") else 8.0  # they scale embeddings themselves
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "norm" in name and name.endswith("weight"):
            parameter.data += 0.2 * noise
        elif name.endswith("bias"):
            parameter.data = 0.5 * noise
        else:
            parameter.data = noise / parameter.shape[-1] ** 0.5 * (small if "embed" in name else 1.5)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.3 * torch.randn_like(buffer))
    return model
