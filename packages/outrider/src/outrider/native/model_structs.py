"""Structs of ``native.h`` that describe a model, its cache and a forward pass, field by field."""

from __future__ import annotations

import ctypes

from outrider.native.structs import WeightStruct

__all__ = [
    "ADAPTED",
    "BatchStruct",
    "BesideStruct",
    "CacheStruct",
    "ChainStruct",
    "FeatureHeadStruct",
    "LatentStruct",
    "LayerInputStruct",
    "LayerStruct",
    "LowRankStruct",
    "MLPStruct",
    "ModelStruct",
    "NormStruct",
    "RecurrentStruct",
    "RoutingStruct",
    "ShardStruct",
    "SharedStruct",
    "SpanStruct",
    "StatesStruct",
    "TokenFound",
]


class MLPStruct(ctypes.Structure):
    """``outrider_mlp``."""

    _fields_ = (*((name, WeightStruct) for name in ("gate", "up", "down")),)


class NormStruct(ctypes.Structure):
    """``outrider_norm_weights``."""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


_NORMS = ("attention_norm", "mlp_norm", "attention_output_norm", "mlp_output_norm")


class RecurrentStruct(ctypes.Structure):
    """``outrider_recurrent``."""

    _fields_ = (
        *((name, WeightStruct) for name in ("qkv", "z", "a", "b", "out")),
        *((name, ctypes.c_int32) for name in ("key_heads", "value_heads", "key_dim", "value_dim")),
        *((name, ctypes.c_int32) for name in ("convolution", "tiled", "kind", "reserved")),
        *((name, ctypes.c_void_p) for name in ("taps", "taps_bias", "decay", "dt_bias", "skip", "norm")),
    )


class LatentStruct(ctypes.Structure):
    """``outrider_latent``."""

    _fields_ = (
        *((name, WeightStruct) for name in ("q_a", "q_b", "kv_a", "k_b", "v_b", "out")),
        *((name, ctypes.c_int32) for name in ("query_rank", "rank", "plain", "rotated", "value_dim")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("query_norm", "norm")),
    )


class RoutingStruct(ctypes.Structure):
    """``outrider_routing``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "scales_inputs", "groups", "groups_used", "best_of_group")),
        *((name, ctypes.c_float) for name in ("sum_added", "least_sum", "scale")),
        ("bias", ctypes.c_void_p),
    )


class LayerStruct(ctypes.Structure):
    """``outrider_layer``."""

    _fields_ = (
        *((name, WeightStruct) for name in ("q", "k", "v", "out")),
        ("mlp", MLPStruct),
        *((name, NormStruct) for name in _NORMS),
        *((name, ctypes.c_void_p) for name in ("q_norm", "k_norm", "rotations")),
        *((name, ctypes.c_int32) for name in ("window", "whole_qk_norm")),
        *((name, ctypes.c_int32) for name in ("experts", "experts_used", "normalised", "gated")),
        ("router", WeightStruct),
        *((name, ctypes.c_void_p) for name in ("expert", "shared_expert", "shared_expert_gate")),
        *((name, ctypes.c_void_p) for name in ("routing", "recurrent", "latent", "embedding_norm", "sinks")),
        *((name, ctypes.c_int32) for name in ("kv_heads", "head_dim", "reads", "values_are_keys")),
        *((name, ctypes.c_void_p) for name in ("v_norm", "input", "beside", "output_scale", "query_scales")),
        *((name, ctypes.c_int32) for name in ("rotated_qk_norm", "chunked", "lacks", "reserved")),
    )


class LayerInputStruct(ctypes.Structure):
    """``outrider_layer_input``."""

    _fields_ = (*((name, WeightStruct) for name in ("gate", "out")), ("norm", ctypes.c_void_p))


class BesideStruct(ctypes.Structure):
    """``outrider_beside``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("router_norm", "expert_norm", "mlp_output_norm", "expert_output_norm")),
        ("expert_scale", ctypes.c_void_p),
    )


_FACTORS = (
    *("eps", "embedding_scale", "residual_scale", "logit_scale", "attention_scale", "attention_cap", "logit_cap"),
    *("swiglu_alpha", "swiglu_limit"),
)


class ModelStruct(ctypes.Structure):
    """``outrider_model``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "inner")),
        *((name, ctypes.c_int32) for name in ("positions", "activation")),
        *((name, ctypes.c_float) for name in _FACTORS),
        ("layer_inputs", ctypes.c_int32),
        ("layer", ctypes.c_void_p),
        ("final_norm", NormStruct),
        *((name, ctypes.c_void_p) for name in ("embedding", "head", "shard")),
        *((name, ctypes.c_void_p) for name in ("layer_projection", "layer_projection_norm")),
    )


class ShardStruct(ctypes.Structure):
    """``outrider_shard``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rank", "size", "group", "reserved")),
        *((name, ctypes.c_void_p) for name in ("key_heads", "hidden", "inner", "expert_inner", "vocabulary")),
        *((name, ctypes.c_void_p) for name in ("gather", "context")),
        *((name, ctypes.c_int64) for name in ("gathers", "bytes")),
    )


class SharedStruct(ctypes.Structure):
    """``outrider_shared``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rank", "size")),
        ("slot_bytes", ctypes.c_int64),
        ("memory", ctypes.c_void_p),
        ("epoch", ctypes.c_int64),
    )


class StatesStruct(ctypes.Structure):
    """``outrider_states``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("slots", "layers", "key_heads", "value_heads", "key_dim", "value_dim")),
        *((name, ctypes.c_int32) for name in ("convolution", "pending")),
        *((name, ctypes.c_void_p) for name in ("state", "inputs", "updates")),
    )


class CacheStruct(ctypes.Structure):
    """``outrider_cache``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("type", "block")),
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("layers", "kv_heads", "head_dim", "value_dim")),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "key_scales", "value_scales", "states", "heads")),
    )


class SpanStruct(ctypes.Structure):
    """``outrider_span``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("start", "count", "mask_rows", "mask_keys", "entries")),
        *((name, ctypes.c_int32) for name in ("slot", "settled", "kept")),
        *((name, ctypes.c_void_p) for name in ("table", "mask")),
    )


class LowRankStruct(ctypes.Structure):
    """``outrider_low_rank``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rank", "reserved")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
        *((name, ctypes.c_void_p) for name in ("down", "up")),
    )


ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers that adapters add to, in the order of ``enum outrider_adapted``."""


class BatchStruct(ctypes.Structure):
    """``outrider_batch``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "spans", "layers", "features", "logit_rows", "reserved")),
        *((name, ctypes.c_void_p) for name in ("tokens", "positions", "inputs", "span", "feature_layers")),
        *(
            (name, ctypes.c_void_p)
            for name in ("logit_row", "feature", "hidden_out", "logits", "residual", "embeddings", "adapters")
        ),
        *((name, ctypes.c_void_p) for name in ("layer_embeddings", "experts")),
    )


TokenFound = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_float)
"""``outrider_token_found``."""


class FeatureHeadStruct(ctypes.Structure):
    """``outrider_feature_head``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("layers", "fc", "fc_norm", "output_norm", "embedding", "ids")),
        *((name, ctypes.c_void_p) for name in ("embedding_norm", "more")),
        ("parts", ctypes.c_int32),
        ("embedding_scale", ctypes.c_float),
    )


class ChainStruct(ctypes.Structure):
    """``outrider_chain``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "levels", "start", "entries")),
        *((name, ctypes.c_void_p) for name in ("table", "features", "tokens", "positions", "sampling", "keys")),
        ("found", TokenFound),
        *((name, ctypes.c_void_p) for name in ("embeddings", "output", "logits")),
    )
