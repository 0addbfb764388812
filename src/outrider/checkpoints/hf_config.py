"""``config.json`` as Hugging Face writes it, to and from ``ModelConfig``.

Whatever would change the arithmetic and is not implemented is refused here by name: a model that loads is a
model that is computed as its authors computed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.utils.json_files import merge_ids, read_json_object, shown

FAMILIES: tuple[str, ...] = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES: tuple[str, ...] = ("default", "linear", "llama3")

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_LARGEST = 2**31 - 1  # no dimension of a real model comes near; keeps products of two in 64 bits


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a model folder; ``generation_config.json`` may add end-of-text ids.

    Raises ``ModelFormatError`` for families, rotary scalings and options that are not implemented.
    """
    raw = read_json_object(folder / "config.json")
    generation = folder / "generation_config.json"
    extra = read_json_object(generation).get("eos_token_id") if generation.exists() else None
    try:
        return parse_config(raw, extra_eos=extra)
    except ModelFormatError as error:
        raise ModelFormatError(f"{folder / 'config.json'}: {error}") from None


def parse_config(raw: dict[str, Any], *, extra_eos: object = None) -> ModelConfig:
    """``config.json``'s object as a ``ModelConfig``. Reads what transformers 4 and 5 write.

    Raises ``ModelFormatError`` naming the key at fault.
    """
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ModelFormatError(f"model_type={shown(family)} is not supported: use one of {', '.join(FAMILIES)}")
    _refuse_unimplemented(raw, family)
    hidden = _size(raw, "hidden_size")
    heads = _size(raw, "num_attention_heads")
    kv_heads = _size(raw, "num_key_value_heads", default=heads)
    head_dim = _size(raw, "head_dim", default=128 if family == "qwen3" else hidden // heads)
    if heads % kv_heads:
        raise ModelFormatError(f"num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}")
    if head_dim % 2:
        raise ModelFormatError(f"head_dim={head_dim} is odd: rotary position needs pairs")
    theta, scaling = _parse_rope(raw)
    layers = _size(raw, "num_hidden_layers")
    return ModelConfig(
        family=family,
        vocab_size=_size(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_size(raw, "intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_seq_len=_size(raw, "max_position_embeddings", default=2048),
        rms_norm_eps=_positive(raw, "rms_norm_eps", default=1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        attention_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tie_embeddings=raw.get("tie_word_embeddings") is True,
        sliding_window=_sliding_window(raw, family, layers),
        eos_token_ids=merge_ids(raw.get("eos_token_id"), extra_eos),
        bos_token_id=next(iter(merge_ids(raw.get("bos_token_id"))), None),
    )


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """``config`` as the object transformers 4 and 5 both read from ``config.json`` (weights in bfloat16)."""
    eos = list(config.eos_token_ids)
    raw: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[config.family]],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_seq_len,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": dict(config.rope_scaling) or None,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
        "torch_dtype": "bfloat16",
    }
    if config.family != "llama":  # said even when None: Mistral's default is a window
        raw["sliding_window"] = config.sliding_window
    if config.family.startswith("qwen"):
        raw |= {"use_sliding_window": config.sliding_window is not None, "max_window_layers": 0}
    return raw


def _refuse_unimplemented(raw: Mapping[str, Any], family: str) -> None:
    if raw.get("quantization_config") is not None:
        raise ModelFormatError(
            "quantised checkpoints (quantization_config) are not supported: use the bfloat16 weights or a GGUF file"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelFormatError(f"hidden_act={shown(raw['hidden_act'])} is not supported: only silu is")
    if raw.get("mlp_bias"):
        raise ModelFormatError("mlp_bias=true is not supported: only bias-free MLPs are")
    if raw.get("attention_bias") and family != "qwen2":
        raise ModelFormatError(f"attention_bias=true is not supported for {family}: only Qwen2's q, k, v biases are")


def _sliding_window(raw: Mapping[str, Any], family: str, layers: int) -> int | None:
    """The window every layer uses, or None; models that mix windowed and full layers are refused."""
    if family == "llama" or raw.get("sliding_window") is None:
        return None
    kinds = raw.get("layer_types")
    if not isinstance(kinds, list):
        full = 0
        if family.startswith("qwen") and raw.get("max_window_layers") != 0:
            full = _size(raw, "max_window_layers", default=28)
        if family.startswith("qwen") and not raw.get("use_sliding_window"):
            full = layers
        kinds = ["full_attention" if i < full else "sliding_attention" for i in range(min(layers, full + 1))]
    found = sorted(set(map(str, kinds)))
    if found == ["full_attention"]:
        return None
    if found == ["sliding_attention"]:
        return _size(raw, "sliding_window")
    raise ModelFormatError(f"layer_types={found} is not supported: all layers must attend alike")


def _parse_rope(raw: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Rotary base and scaling from ``rope_parameters`` (transformers 5) or ``rope_theta`` + ``rope_scaling``."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelFormatError(f"rope_scaling={shown(rope)} is not an object: download the model again")
    theta = _positive(raw | rope, "rope_theta", default=10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ModelFormatError(f"rope type {shown(kind)} is not supported: use one of {', '.join(ROPE_TYPES)}")
    partial = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ModelFormatError(f"partial_rotary_factor={shown(partial)} is not supported: only whole heads are rotated")
    if kind == "default":
        return theta, {}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": _positive(rope, "factor")}
    if kind == "llama3":
        scaling |= {key: _positive(rope, key) for key in ("low_freq_factor", "high_freq_factor")}
        scaling["original_max_position_embeddings"] = _size(rope, "original_max_position_embeddings")
    return theta, scaling


def _size(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _LARGEST:
        raise ModelFormatError(f"{key}={shown(value)} is not a positive integer: download the model again")
    return value


def _positive(raw: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e18:  # NaN is neither
        raise ModelFormatError(f"{key}={shown(value)} is not a positive number: download the model again")
    return float(value)
