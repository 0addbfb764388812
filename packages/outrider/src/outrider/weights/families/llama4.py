"""Llama 4's text model: chunks of attention in layers that rotate, and experts whose weight is of their input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.models.temperature import QueryTemperature
from outrider.utils.json_files import shown
from outrider.weights.families.base import COMMON, Family, Raw, attention_biases, flag, num_layers, words
from outrider.weights.families.mixture import experts_of
from outrider.weights.values import positive, positive_integer

__all__ = ["LLAMA4"]

_CHUNKED, _FULL = "chunked_attention", "full_attention"


def _rotated(raw: Raw) -> list[bool]:
    """For each layer, whether it rotates. An empty list counts as none, as in transformers."""
    layers, rotated = num_layers(raw), raw.get("no_rope_layers")
    if not rotated:
        every = positive_integer(raw, "no_rope_layer_interval")
        return [(i + 1) % every != 0 for i in range(layers)]
    if not isinstance(rotated, list) or len(rotated) != layers or not all(n in (0, 1) for n in rotated):
        raise ModelFormatError(f"no_rope_layers={shown(rotated)} is not 0 or 1 for each of {layers} layers")
    return list(map(bool, rotated))


def _chunks(raw: Raw, rotated: list[bool]) -> dict[str, Any]:
    """The layers that attend to chunks: those of ``layer_types``, or those that rotate."""
    size, kinds = raw["attention_chunk_size"], raw.get("layer_types")
    if kinds is None:
        kinds = [_CHUNKED if turns and size is not None else _FULL for turns in rotated]
    if not isinstance(kinds, list) or len(kinds) != len(rotated) or not set(kinds) <= {_CHUNKED, _FULL}:
        raise ModelFormatError(f"layer_types={shown(kinds)} does not name the kind of each of {len(rotated)} layers")
    if _CHUNKED not in kinds:
        return {}
    chunked = tuple(kind == _CHUNKED for kind in kinds)
    return {
        "sliding_window": positive_integer(raw, "attention_chunk_size"),
        "chunked_windows": True,
        "window_layers": () if all(chunked) else chunked,
    }


def _sparse(raw: Raw) -> tuple[bool, ...]:
    """For each layer, whether it has experts."""
    layers, named = num_layers(raw), raw.get("moe_layers")
    if named is None:
        every = positive_integer(raw, "interleave_moe_layer_step")
        return tuple((i + 1) % every == 0 for i in range(layers))
    if not isinstance(named, list) or not all(type(n) is int for n in named):
        raise ModelFormatError(f"moe_layers={shown(named)} is no list of layers: download the model again")
    return tuple(i in named for i in range(layers))


def _read(raw: Raw) -> dict[str, Any]:
    rotated, sparse = _rotated(raw), _sparse(raw)
    plain = experts_of(raw, "num_local_experts", "intermediate_size", False, () if all(sparse) else sparse)
    own: dict[str, Any] = {
        "intermediate_size": positive_integer(raw, "intermediate_size_mlp"),
        "rope_layers": () if all(rotated) else tuple(rotated),
        "unit_qk_norm": flag(raw, "use_qk_norm") and any(rotated),
        "experts": None,
    }
    if any(sparse):
        own["experts"] = replace(plain, router="sigmoid", scales_inputs=True, shared_size=plain.size, shared_gate=False)
    if flag(raw, "attn_temperature_tuning") and not all(rotated) and raw["attn_scale"] != 0:
        own["query_temperature"] = QueryTemperature(
            scale=positive(raw, "attn_scale"), length=positive_integer(raw, "floor_scale"), ahead=1, unrotated=True
        )
    return attention_biases(raw) | _chunks(raw, rotated) | own


def _write(config: ModelConfig) -> dict[str, Any]:
    experts, temperature = config.experts, config.query_temperature
    layers = range(config.num_layers)
    own = {} if temperature is None else {"attn_scale": temperature.scale, "floor_scale": temperature.length}
    return own | {
        "intermediate_size_mlp": config.intermediate_size,
        "intermediate_size": config.intermediate_size if experts is None else experts.size,
        "num_local_experts": 1 if experts is None else experts.count,
        "num_experts_per_tok": 1 if experts is None else experts.used,
        "moe_layers": [i for i in layers if config.is_sparse(i)],
        "no_rope_layers": [int(config.rope(i) is not None) for i in layers],
        "layer_types": [_FULL if config.window(i) is None else _CHUNKED for i in layers],
        "attention_chunk_size": config.sliding_window,
        "use_qk_norm": config.unit_qk_norm,
        "attn_temperature_tuning": temperature is not None,
        "attention_bias": config.attention_bias,
    }


LLAMA4 = Family(
    name="llama4_text",
    architecture="Llama4ForCausalLM",
    defaults=COMMON
    | {
        "vocab_size": 202048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 1,
        "num_local_experts": 16,
        "moe_layers": None,
        "interleave_moe_layer_step": 1,
        "use_qk_norm": True,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "attention_bias": False,
    },
    read=_read,
    write=_write,
    keys=words(
        "intermediate_size_mlp num_experts_per_tok num_local_experts moe_layers interleave_moe_layer_step use_qk_norm "
        "no_rope_layers no_rope_layer_interval attention_chunk_size attn_temperature_tuning floor_scale attn_scale "
        "attention_bias output_router_logits router_aux_loss_coef router_jitter_noise"
    ),
    windows="of its own",
    theta=5e5,
    interleaved=True,
    rename={
        "mlp.gate": "feed_forward.router",
        **{f"mlp.{part}_proj": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
        **{
            f"mlp.shared_expert.{part}_proj": f"feed_forward.shared_expert.{part}_proj"
            for part in ("gate", "up", "down")
        },
    },
    paired_experts="halves",
    experts="feed_forward.experts",
)
