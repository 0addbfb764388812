"""The text of Gemma 4: other heads in layers without a window, keys shared by layers, embeddings of each layer."""

from __future__ import annotations

from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import Experts, ModelConfig
from outrider.models.gemma4 import Gemma4
from outrider.utils.json_files import shown
from outrider.weights.families.base import (
    COMMON,
    GELU_TANH,
    Family,
    Raw,
    attention_biases,
    flag,
    kinds_of,
    optional,
    pattern,
)
from outrider.weights.values import positive_integer

__all__ = ["GEMMA4"]

_PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
_DEFAULTS = COMMON | {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "full_attention": _PROPORTIONAL,
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "attention_bias": False,
    "sliding_window": 512,
    "layer_types": None,
    "final_logit_softcapping": None,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "num_experts": None,
    "top_k_experts": None,
    "moe_intermediate_size": None,
    "global_head_dim": 512,
    "num_global_key_value_heads": None,
    "per_layer_config": None,
}


def _read(raw: Raw) -> dict[str, Any]:
    kinds = raw["layer_types"]
    if isinstance(kinds, list) and kinds:  # transformers makes the last layer one without a window
        raw = {**raw, "layer_types": [*kinds[:-1], "full_attention"]}
    windows = pattern(raw, 6)
    if kinds is None and "window_layers" in windows:
        windows["window_layers"] = (*windows["window_layers"][:-1], False)
    if not any(windows.get("window_layers", ())):
        raise ModelFormatError("layer_types names no sliding_attention, which is not supported for gemma4_text")
    gemma4 = _gemma4(raw, windows["window_layers"])
    own = {"mlp_bias": False, "activation": "gelu_tanh", "norms": "both", "qk_norm": True, "attention_scale": 1.0}
    scale = positive_integer(raw, "hidden_size") ** 0.5
    caps = {"embedding_scale": scale, "logit_cap": optional(raw, "final_logit_softcapping")}
    return attention_biases(raw) | windows | own | caps | {"gemma4": gemma4, "experts": _experts(raw)}


def _gemma4(raw: Raw, windowed: tuple[bool, ...]) -> Gemma4:
    heads, inner = positive_integer(raw, "num_attention_heads"), positive_integer(raw, "intermediate_size")
    head_dim, kv_heads = _full_heads(raw, windowed)
    if kv_heads == 0 or heads % kv_heads or head_dim == 0 or head_dim % 2:
        raise ModelFormatError(
            f"{kv_heads} key heads of {head_dim} dimensions in layers of full attention are not supported: "
            f"a divisor of num_attention_heads={heads} is, and an even number of dimensions"
        )
    inputs = _size_or_zero(raw, "hidden_size_per_layer_input")
    vocab = positive_integer(raw, "vocab_size_per_layer_input") if inputs else 0
    if inputs and vocab < positive_integer(raw, "vocab_size"):
        raise ModelFormatError(f"vocab_size_per_layer_input={vocab} is less than vocab_size: download the model again")
    return Gemma4(
        full_head_dim=head_dim,
        full_kv_heads=kv_heads,
        values_are_keys=flag(raw, "attention_k_eq_v"),
        reads=_reads(windowed, _size_or_zero(raw, "num_kv_shared_layers")),
        sharing_size=inner * (2 if flag(raw, "use_double_wide_mlp") else 1),
        layer_inputs=inputs,
        layer_vocab=vocab,
    )


def _full_heads(raw: Raw, windowed: tuple[bool, ...]) -> tuple[int, int]:
    """Dimensions and key heads in layers without a window.

    ``per_layer_config``, where there is one, says both for each of these layers.
    """
    own = raw["num_key_value_heads"] if raw["num_key_value_heads"] is not None else raw["num_attention_heads"]
    layers = raw["per_layer_config"]
    if layers is None:
        different = flag(raw, "attention_k_eq_v") and raw["num_global_key_value_heads"] is not None
        kv_heads = raw["num_global_key_value_heads"] if different else own
        return positive_integer(raw, "global_head_dim"), positive_integer({"key heads": kv_heads}, "key heads")
    if not isinstance(layers, dict):
        raise ModelFormatError(f"per_layer_config={shown(layers)} is not an object: download the model again")
    found = {_heads_of(layers, layer, raw["head_dim"], own) for layer, here in enumerate(windowed) if not here}
    others = {_heads_of(layers, layer, raw["head_dim"], own) for layer, here in enumerate(windowed) if here}
    if len(found) != 1 or others != {(raw["head_dim"], own)}:
        raise ModelFormatError("per_layer_config: heads that differ within a kind of layer are not supported")
    return found.pop()


def _heads_of(layers: dict[Any, Any], layer: int, head_dim: Any, kv_heads: Any) -> tuple[int, int]:
    said = layers.get(str(layer), layers.get(layer)) or {}
    if not isinstance(said, dict) or said.keys() - {"head_dim", "num_key_value_heads"}:
        raise ModelFormatError(f"per_layer_config[{layer}]={shown(said)} is not supported: only heads may differ")
    both = {
        "head_dim": said.get("head_dim", head_dim),
        "num_key_value_heads": said.get("num_key_value_heads", kv_heads),
    }
    return positive_integer(both, "head_dim"), positive_integer(both, "num_key_value_heads")


def _reads(windowed: tuple[bool, ...], shared: int) -> tuple[int | None, ...]:
    """The layer of the cache that each of the last ``shared`` layers reads: the last before them of its kind."""
    first = len(windowed) - shared
    if first < 0 or set(windowed[:first]) != set(windowed):
        raise ModelFormatError(
            f"num_kv_shared_layers={shared} leaves no layer of each kind that has keys: download the model again"
        )
    last = {kind: max(i for i in range(first) if windowed[i] == kind) for kind in set(windowed)}
    return (*(None,) * first, *(last[kind] for kind in windowed[first:]))


def _experts(raw: Raw) -> Experts | None:
    if not flag(raw, "enable_moe_block"):
        return None
    count, used = positive_integer(raw, "num_experts"), positive_integer(raw, "top_k_experts")
    if used > count:
        raise ModelFormatError(f"top_k_experts={used} is more than num_experts={count}: download the model again")
    return Experts(
        count=count, used=used, size=positive_integer(raw, "moe_intermediate_size"), normalised=True, beside=True
    )


def _size_or_zero(raw: Raw, key: str) -> int:
    return 0 if raw[key] in (0, None) else positive_integer(raw, key)


def _write(config: ModelConfig) -> dict[str, Any]:
    own, experts = config.gemma4, config.experts
    assert own is not None
    rope = {"full_attention": _written_rope(config), "sliding_attention": {"rope_type": "default"}}
    rope["sliding_attention"]["rope_theta"] = config.local_rope_theta
    moe = {} if experts is None else {
        "num_experts": experts.count, "top_k_experts": experts.used, "moe_intermediate_size": experts.size,
    }  # fmt: skip
    return moe | {
        "hidden_act": None,
        "hidden_activation": GELU_TANH[0],
        "rope_theta": None,
        "rope_scaling": None,
        "rope_parameters": rope,
        "attention_bias": config.attention_bias,
        "final_logit_softcapping": config.logit_cap,
        "sliding_window": config.sliding_window,
        "layer_types": kinds_of(config),
        "global_head_dim": own.full_head_dim,
        "num_global_key_value_heads": own.full_kv_heads if own.values_are_keys else None,
        "attention_k_eq_v": own.values_are_keys,
        "num_kv_shared_layers": sum(layer is not None for layer in own.reads),
        "use_double_wide_mlp": own.sharing_size != config.intermediate_size,
        "hidden_size_per_layer_input": own.layer_inputs,
        "vocab_size_per_layer_input": own.layer_vocab or config.vocab_size,
        "enable_moe_block": experts is not None,
    }


def _written_rope(config: ModelConfig) -> dict[str, Any]:
    scaling = dict(config.rope_scaling)
    share = {"partial_rotary_factor": scaling.pop("share")} if "share" in scaling else {}
    return {"rope_type": "default", **scaling, **share, "rope_theta": config.rope_theta}


GEMMA4 = Family(
    name="gemma4_text",
    architecture="Gemma4ForCausalLM",
    defaults=_DEFAULTS,
    read=_read,
    write=_write,
    only={"hidden_activation": GELU_TANH, "use_bidirectional_attention": (None, "vision")},
    keys=frozenset(["output_router_logits"]),
    windows="of its own",
    theta=1e6,
    rope_types=("default", "linear", "dynamic", "llama3", "yarn", "proportional"),
    rope_by_kind=1e4,
    rename={
        "attention_output_norm": "post_attention_layernorm",
        "post_attention_layernorm": "pre_feedforward_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
        "mlp.gate": "router.proj",
        "mlp.router_scale": "router.scale",
        "mlp.expert_scale": "router.per_expert_scale",
        "mlp.expert_norm": "pre_feedforward_layernorm_2",
        "mlp.mlp_output_norm": "post_feedforward_layernorm_1",
        "mlp.expert_output_norm": "post_feedforward_layernorm_2",
        "mlp.experts.*.gate_proj": "experts.*.gate_proj",
        "mlp.experts.*.up_proj": "experts.*.up_proj",
        "mlp.experts.*.down_proj": "experts.*.down_proj",
    },
    may_stack_experts=True,
    experts="experts",
)
