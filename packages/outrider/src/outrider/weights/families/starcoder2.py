"""StarCoder2: layer norms, biases everywhere, and an MLP without a gate."""

from __future__ import annotations

from typing import Any

from outrider.models.config import ModelConfig
from outrider.weights.families.base import COMMON, GELU_TANH, Family, Raw, flag, words

__all__ = ["STARCODER2"]


def _read(raw: Raw) -> dict[str, Any]:
    biased = dict.fromkeys(("attention_bias", "output_bias", "mlp_bias"), flag(raw, "use_bias"))
    return biased | {"layer_norm": True, "gated": False, "activation": "gelu_tanh"}


def _write(config: ModelConfig) -> dict[str, Any]:
    own = {"use_bias": config.mlp_bias, "norm_epsilon": config.rms_norm_eps, "hidden_act": "gelu_pytorch_tanh"}
    return own | {"sliding_window": config.sliding_window}


STARCODER2 = Family(
    name="starcoder2",
    architecture="Starcoder2ForCausalLM",
    defaults={key: value for key, value in COMMON.items() if key != "rms_norm_eps"}
    | {
        "hidden_size": 3072,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "vocab_size": 49152,
        "intermediate_size": 12288,
        "max_position_embeddings": 4096,
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": 1e-5,
        "use_bias": True,
        "sliding_window": None,
        "tie_word_embeddings": True,
    },
    read=_read,
    write=_write,
    keys=words("use_bias norm_epsilon embedding_dropout residual_dropout"),
    only={"hidden_act": GELU_TANH},
    windows="all",
    eps="norm_epsilon",
    rename={"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
)
