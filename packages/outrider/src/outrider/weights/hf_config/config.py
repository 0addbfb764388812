"""Converts ``config.json``, as Hugging Face writes it, to and from ``ModelConfig``.

An unsupported option that would change the arithmetic is refused by name: every model that loads is computed as its
authors computed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import ModelFormatError
from outrider.extensions import has_extension
from outrider.models.config import ModelConfig
from outrider.utils.json_files import merge_ids, read_json_object, shown
from outrider.weights.families import FAMILIES
from outrider.weights.families.base import flag, kinds_of
from outrider.weights.families.elsewhere import TEXT_PARTS, VISION_LANGUAGE, family_extension
from outrider.weights.hf_config.keys import check_config_keys, check_generation_config
from outrider.weights.hf_config.multimodal import text_config
from outrider.weights.hf_config.rope import Rope, read_rope
from outrider.weights.hf_config.windows import read_windows
from outrider.weights.values import positive, positive_integer


def read_config(folder: Path) -> ModelConfig:
    """The configuration of a model folder; ``generation_config.json`` may add end-of-text ids.

    For a model of text and images it is the configuration of the text part.

    Raises ``ModelFormatError`` for families, rotary scalings, options and keys that are not implemented.
    """
    raw = read_json_object(folder / "config.json")
    generation = folder / "generation_config.json"
    extra = read_json_object(generation) if generation.exists() else {}
    try:
        if raw.get("model_type") in VISION_LANGUAGE:
            raw = family_extension("vision_language", folder).text_config(folder, raw)
        elif raw.get("model_type") in TEXT_PARTS:
            raw = text_config(raw)
        config = parse_config(raw, extra_eos=extra.get("eos_token_id"))
    except ModelFormatError as error:
        raise ModelFormatError(f"{folder / 'config.json'}: {error}") from None
    try:
        check_generation_config(extra)
    except ModelFormatError as error:
        raise ModelFormatError(f"{generation}: {error}") from None
    return config


def parse_config(given: Mapping[str, Any], *, extra_eos: object = None) -> ModelConfig:
    """``config.json``'s object as a ``ModelConfig``, as transformers 4 and 5 write it.

    A key that is absent has the default that transformers gives it in this family. Raises ``ModelFormatError`` naming
    the key at fault.
    """
    family = given.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        more = "" if has_extension("families", "transformers") else ", or pip install 'outrider[transformers]'"
        raise ModelFormatError(f"model_type={shown(family)} is not supported: use one of {', '.join(FAMILIES)}{more}")
    kind = FAMILIES[family]
    check_config_keys(given, kind)
    raw = {**kind.defaults, **given}
    if "rotary_dim" in kind.keys and isinstance(raw.get("rotary_dim"), int):  # MiniMax's older name
        raw.setdefault("partial_rotary_factor", raw["rotary_dim"] / positive_integer(raw, "head_dim"))
    hidden = _size(raw, "hidden_size")
    heads = _size(raw, "num_attention_heads")
    kv_heads = heads if raw["num_key_value_heads"] is None else _size(raw, "num_key_value_heads")
    from_hidden = "head_dim" not in kind.defaults and raw.get("head_dim") is None
    head_dim = hidden // heads if from_hidden else _size(raw, "head_dim")
    if heads % kv_heads:
        raise ModelFormatError(f"num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}")
    if head_dim == 0 or head_dim % 2:
        raise ModelFormatError(f"head_dim={head_dim} is odd or 0: rotary position needs pairs")
    rope = read_rope(raw, kind)
    fields: dict[str, Any] = {
        "family": family,
        "vocab_size": _size(raw, "vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": _size(raw, "intermediate_size"),
        "num_layers": _size(raw, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "max_seq_len": _context(raw, rope),
        "rms_norm_eps": positive(raw, kind.eps),
        "rope_theta": rope.theta,
        "rope_scaling": rope.scaling,
        "rotary_dim": _rotary_dim(rope, head_dim),
        "tie_embeddings": flag(raw, "tie_word_embeddings"),
        "eos_token_ids": merge_ids(raw.get("eos_token_id"), extra_eos),
        "bos_token_id": next(iter(merge_ids(raw.get("bos_token_id"))), None),
    }
    fields |= read_windows(raw, kind) | kind.read(raw)
    if rope.local_theta is not None and fields.get("window_layers"):
        fields["local_rope_theta"] = rope.local_theta
    return ModelConfig(**fields)


def _context(raw: Mapping[str, Any], rope: Rope) -> int:
    """The context length. LongRoPE rotates a text beyond the original context otherwise from its first token on."""
    length = _size(raw, "max_position_embeddings")
    if rope.scaling.get("rope_type") == "longrope":
        return min(length, int(rope.scaling["original_max_position_embeddings"]))
    return length


def _rotary_dim(rope: Rope, head_dim: int) -> int | None:
    turned = int(head_dim * rope.share)
    if turned < 2 or turned > head_dim or turned % 2:
        raise ModelFormatError(f"partial_rotary_factor={rope.share} rotates {turned} of {head_dim}: no pairs")
    factors = rope.scaling.get("short_factor")
    if factors is not None and len(factors) != turned // 2:
        raise ModelFormatError(f"short_factor has {len(factors)} numbers for {turned // 2} rotary pairs")
    return None if turned == head_dim else turned


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """``config`` as the object of ``config.json`` that transformers 4 and 5 both read (weights in bfloat16)."""
    eos, family = list(config.eos_token_ids), FAMILIES[config.family]
    raw: dict[str, Any] = {
        "architectures": [family.architecture],
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
    length = "original_max_position_embeddings"
    if length in family.defaults and length in config.rope_scaling:
        raw[length] = config.rope_scaling[length]
    if family.windows == "by kind":  # written even if None: Mistral's default is a window
        raw["sliding_window"] = config.sliding_window
        raw |= {"layer_types": kinds_of(config)} if config.window_layers else {}
    if "use_sliding_window" in family.defaults:
        raw |= {"use_sliding_window": config.sliding_window is not None, "max_window_layers": 0}
    if family.partial:
        raw["partial_rotary_factor"] = (config.rotary_dim or config.head_dim) / config.head_dim
    return raw | family.write(config)


_size = positive_integer
