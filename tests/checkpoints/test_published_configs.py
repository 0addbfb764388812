"""``config.json`` as published models and their fine-tunes have it, with all that stands beside what matters."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.checkpoints.hf_config import parse_config
from outrider.errors import ModelFormatError

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
