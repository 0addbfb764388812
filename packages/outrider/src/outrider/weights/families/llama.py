"""Llama, and those that are Llama but for biases, norms on q and k, or a window: Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from outrider.weights.families.base import COMMON, SILU, Family, words

__all__ = ["LLAMA", "MISTRAL", "QWEN2", "QWEN3"]

_LLAMA = COMMON | {"vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048}
_QWEN = COMMON | {
    "num_key_value_heads": 32,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_BIASES = {"attention_bias": (False, None)}

LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    defaults=_LLAMA,
    only={"hidden_act": SILU, "mlp_bias": (False, None), **_BIASES},
)
MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    defaults=_LLAMA
    | {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    windows="by kind",  # layer_types make it a Ministral in transformers
)
QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    defaults=_QWEN,
    read=lambda raw: {"attention_bias": True},
    keys=words("attention_bias"),  # q, k and v have biases whatever the key says
    windows="by kind",
)
QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    defaults=_QWEN | {"head_dim": 128},
    read=lambda raw: {"qk_norm": True},
    only={"hidden_act": SILU, **_BIASES},
    windows="by kind",
)
