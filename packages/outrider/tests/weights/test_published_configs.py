"""``config.json`` as published models and their fine-tunes have it, with all that stands beside what matters."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.errors import ModelFormatError
from outrider.models.config import Experts
from outrider.weights.hf_config.config import parse_config

COMMON = {"torch_dtype": "bfloat16", "use_cache": True, "initializer_range": 0.02, "hidden_act": "silu"}
LLAMA = COMMON | {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0,
    "mlp_bias": False, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA2 = LLAMA | {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
}  # fmt: skip
LLAMA3 = LLAMA | {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0,
    "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
SCALED = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip
MISTRAL = COMMON | {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "bos_token_id": 1, "eos_token_id": 2,
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip
QWEN2 = COMMON | {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768,
    "max_window_layers": 21, "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3 = COMMON | {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_size": 1024, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 28,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama 2 7B": LLAMA2 | {"_name_or_path": "meta-llama/Llama-2-7b-hf", "transformers_version": "4.31.0.dev0"},
    "Llama 2 70B chat": LLAMA2 | {
        "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
        "num_key_value_heads": 8, "pad_token_id": 0,
    },
    "Vicuna": LLAMA2 | {"_name_or_path": "vicuna-7b-v1.5", "pad_token_id": 0, "max_sequence_length": 4096},
    "an old fine-tune": LLAMA2 | {"max_length": 4096, "temperature": 0.9, "top_p": 0.6, "do_sample": True},
    "TinyLlama": LLAMA2 | {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_key_value_heads": 4,
        "max_position_embeddings": 2048, "transformers_version": "4.35.0",
    },
    "CodeLlama": LLAMA2 | {"max_position_embeddings": 16384, "rope_theta": 1000000, "vocab_size": 32016},
    "Llama 3 8B": LLAMA3 | {"transformers_version": "4.40.0.dev0"},
    "Llama 3.1 8B Instruct": LLAMA3 | {
        "eos_token_id": [128001, 128008, 128009], "max_position_embeddings": 131072, "rope_scaling": SCALED,
    },
    "Llama 3.2 1B": LLAMA3 | {
        "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "tie_word_embeddings": True, "rope_scaling": SCALED | {"factor": 32.0}, "max_position_embeddings": 131072,
    },
    "SmolLM2": LLAMA | {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "is_llama_config": True,
        "pad_token_id": 2, "rope_interleaved": False, "tie_word_embeddings": True, "rope_theta": 100000,
        "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
    },
    "a distilled Llama": LLAMA3 | {"_name_or_path": "x", "unsloth_version": "2024.9", "unsloth_fixed": True},
    "a Llama of transformers 5": {k: v for k, v in LLAMA3.items() if not k.startswith(("torch_", "rope_"))} | {
        "dtype": "bfloat16", "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "pad_token_id": None,
    },
    "Mistral 0.1": MISTRAL | {"transformers_version": "4.34.0.dev0"},
    "Mistral 0.3": MISTRAL | {"sliding_window": None, "vocab_size": 32768, "rope_theta": 1000000.0, "head_dim": 128},
    "Mistral Nemo": MISTRAL | {
        "head_dim": 128, "hidden_size": 5120, "num_hidden_layers": 40, "sliding_window": None, "vocab_size": 131072,
    },
    "Zephyr": MISTRAL | {"_name_or_path": "x", "pad_token_id": 2, "attention_dropout": 0.0},
    "Qwen2 0.5B": QWEN2 | {"transformers_version": "4.40.1"},
    "Qwen2.5 7B Instruct": QWEN2 | {
        "hidden_size": 3584, "intermediate_size": 18944, "max_window_layers": 28, "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "sliding_window": 131072, "tie_word_embeddings": False,
        "vocab_size": 152064,
    },
    "Qwen2.5 with its remarks": QWEN2 | {
        "use_mrope": False, "pad_token_id": 151643, "_attn_implementation_autoset": True,
    },
    "Qwen3 0.6B": QWEN3 | {"transformers_version": "4.51.0"},
    "Qwen3 of transformers 4.56": QWEN3 | {"layer_types": ["full_attention"] * 28, "dtype": "bfloat16"},
    "a merge": MISTRAL | {"_name_or_path": "a/b", "quantization_config": None, "auto_map": {}},
}  # fmt: skip


PHI: dict[str, Any] = COMMON | {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32,
    "intermediate_size": 8192, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "attention_dropout": 0.0, "attention_bias": False,
    "auto_map": {
        "AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
}  # fmt: skip
GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Phi-3 mini 4k": (
        PHI | {
            "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096, "vocab_size": 32064,
            "rope_scaling": None, "sliding_window": 2047, "tie_word_embeddings": False, "pad_token_id": 32000,
        },
        {"sliding_window": 2047, "rotary_dim": None, "max_seq_len": 4096},
    ),
    "Phi-4 mini": (
        PHI | {
            "auto_map": PHI["auto_map"] | {"AutoTokenizer": "Xenova/gpt-4o"}, "num_attention_heads": 24,
            "num_key_value_heads": 8, "max_position_embeddings": 131072, "partial_rotary_factor": 0.75,
            "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.5] * 48},
            "sliding_window": 262144, "tie_word_embeddings": True, "vocab_size": 200064,
        },
        {"rotary_dim": 96, "max_seq_len": 4096, "tie_embeddings": True},
    ),
    "Granite 3.1 2B": (
        COMMON | {
            "architectures": ["GraniteForCausalLM"], "model_type": "granite", "attention_bias": False,
            "attention_dropout": 0.1, "attention_multiplier": 0.015625, "embedding_multiplier": 12.0,
            "hidden_size": 2048, "intermediate_size": 8192, "logits_scaling": 8.0, "max_position_embeddings": 131072,
            "mlp_bias": False, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
            "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 5000000.0,
            "tie_word_embeddings": True, "vocab_size": 49152,
        },
        {"attention_scale": 0.015625, "embedding_scale": 12.0, "logit_scale": 0.125, "residual_scale": 0.22},
    ),
    "SmolLM3": (
        COMMON | {
            "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "attention_bias": False,
            "hidden_size": 2048, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
            "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False, "no_rope_layer_interval": 4,
            "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16, "num_hidden_layers": 36,
            "num_key_value_heads": 4, "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_theta": 5000000.0,
            "sliding_window": None, "use_sliding_window": False, "vocab_size": 128256,
        },
        {"rope_layers": (True, True, True, False) * 9, "tie_embeddings": True},
    ),
    "OLMo 3 7B": (
        COMMON | {
            "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "attention_bias": False,
            "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 65536,
            "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8, "num_attention_heads": 32,
            "num_hidden_layers": 32, "num_key_value_heads": 32, "rms_norm_eps": 1e-06, "rope_theta": 500000,
            "rope_scaling": {
                "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
                "original_max_position_embeddings": 8192, "rope_type": "yarn",
            },
            "sliding_window": 4096, "vocab_size": 100278,
        },
        {"sliding_window": 4096, "local_rope_theta": 500000.0, "norms": "after"},
    ),
    "StarCoder2 3B": (
        COMMON | {
            "architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "attention_dropout": 0.1,
            "embedding_dropout": 0.1, "residual_dropout": 0.1, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072,
            "intermediate_size": 12288, "max_position_embeddings": 16384, "mlp_type": "default",
            "norm_epsilon": 1e-05, "norm_type": "layer_norm", "num_attention_heads": 24, "num_hidden_layers": 30,
            "num_key_value_heads": 2, "rope_theta": 999999.4420358813, "sliding_window": 4096, "use_bias": True,
            "vocab_size": 49152,
        },
        {"layer_norm": True, "gated": False, "mlp_bias": True, "sliding_window": 4096, "tie_embeddings": True},
    ),
    "GLM-4 9B 0414": (
        COMMON | {
            "architectures": ["Glm4ForCausalLM"], "model_type": "glm4", "attention_bias": True, "head_dim": 128,
            "eos_token_id": [151329, 151336, 151338], "hidden_size": 4096, "intermediate_size": 13696,
            "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 40,
            "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "vocab_size": 151552, "tie_word_embeddings": False,
        },
        {"rotary_dim": 64, "norms": "both", "attention_bias": True, "output_bias": False},
    ),
    "Gemma 2 2B": (
        COMMON | GELU | {
            "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attention_bias": False,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "cache_implementation": "hybrid",
            "head_dim": 256, "hidden_size": 2304, "intermediate_size": 9216, "max_position_embeddings": 8192,
            "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000,
        },
        {"attention_cap": 50.0, "logit_cap": 30.0, "window_layers": (True, False) * 13, "embedding_scale": 48.0},
    ),
    "Gemma 3 1B": (
        {key: value for key, value in COMMON.items() if key != "hidden_act"} | {
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "attention_bias": False,
            "attn_logit_softcapping": None, "final_logit_softcapping": None, "cache_implementation": "hybrid",
            "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
            "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 26,
            "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
            "sliding_window_pattern": 6, "vocab_size": 262144,
        },
        {"local_rope_theta": 10000.0, "rope_theta": 1000000.0, "sliding_window": 512, "qk_norm": True},
    ),
    "Mixtral 8x7B": (
        MISTRAL | {
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_experts_per_tok": 2,
            "num_local_experts": 8, "output_router_logits": False, "router_aux_loss_coef": 0.02, "sliding_window": None,
            "rope_theta": 1000000.0,
        },
        {"experts": Experts(count=8, used=2, size=14336, normalised=True)},
    ),
    "Qwen3 30B A3B": (
        QWEN3 | {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "decoder_sparse_step": 1,
            "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts": 128,
            "num_experts_per_tok": 8, "output_router_logits": False, "router_aux_loss_coef": 0.001,
        },
        {"experts": Experts(count=128, used=8, size=768, normalised=True, layers=(True,) * 28), "qk_norm": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "said"), OTHERS.values(), ids=OTHERS)
def test_published_models_of_other_families_are_read(raw: dict[str, Any], said: dict[str, Any]) -> None:
    config = parse_config(raw)
    assert {name: getattr(config, name) for name in said} == said


def test_code_of_the_models_own_is_refused_unless_transformers_has_the_classes() -> None:
    raw = OTHERS["Phi-4 mini"][0]
    for auto_map in ({"AutoModelForCausalLM": "modeling_phi3.Phi3WithAdapters"}, {"AutoConfig": "x"}):
        with pytest.raises(ModelFormatError, match="auto_map"):
            parse_config(raw | {"auto_map": auto_map})
    assert parse_config(raw | {"auto_map": {"AutoTokenizer": "x"}}) == parse_config(raw)


@pytest.mark.parametrize("raw", PUBLISHED.values(), ids=PUBLISHED)
def test_published_models_are_read(raw: dict[str, Any]) -> None:
    config = parse_config(raw)
    assert config.hidden_size == raw["hidden_size"]
    assert config.num_kv_heads == raw["num_key_value_heads"]
    assert config.sliding_window == (raw.get("sliding_window") if raw["model_type"] == "mistral" else None)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors"])
def test_weights_in_another_form_are_refused_by_name(method: str) -> None:
    with pytest.raises(ModelFormatError, match="quantization_config"):
        parse_config(LLAMA3 | {"quantization_config": {"quant_method": method, "bits": 4}})
