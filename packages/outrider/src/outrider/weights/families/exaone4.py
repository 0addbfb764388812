"""EXAONE 4: norms behind the blocks; where some layers have windows, the others know no positions."""

from __future__ import annotations

from typing import Any

from outrider.models.config import ModelConfig
from outrider.weights.families.base import COMMON, Family, Raw, kinds_of, layer_kinds, pattern, words
from outrider.weights.values import positive_integer

__all__ = ["EXAONE4"]


def _read(raw: Raw) -> dict[str, Any]:
    own: dict[str, Any] = {"norms": "after", "qk_norm": True}
    if raw["sliding_window"] is None and "sliding_attention" not in (layer_kinds(raw) or ()):
        return own
    every = 1 if layer_kinds(raw) else positive_integer(raw, "sliding_window_pattern")
    windows = pattern(raw, every)
    return own | windows | {"rope_layers": windows.get("window_layers", (False,) * raw["num_hidden_layers"])}


def _write(config: ModelConfig) -> dict[str, Any]:
    """A window that no layer has still says that no layer rotates."""
    window = config.max_seq_len if config.rope_layers else None
    return {"layer_types": kinds_of(config), "sliding_window": config.sliding_window or window}


EXAONE4 = Family(
    name="exaone4",
    architecture="Exaone4ForCausalLM",
    defaults=COMMON
    | {
        "num_key_value_heads": 32,
        "vocab_size": 102400,
        "intermediate_size": 16384,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    read=_read,
    write=_write,
    keys=words("sliding_window_pattern"),
    windows="of its own",
    rename={"attention_output_norm": "post_attention_layernorm", "mlp_output_norm": "post_feedforward_layernorm"},
)
