"""Structs of ``native.h`` that describe a model, its cache and a forward pass, field by field."""

from __future__ import annotations

import ctypes

from outrider.kernels.native.structs import WeightStruct

__all__ = ["BatchStruct", "CacheStruct", "LayerStruct", "ModelStruct", "SpanStruct"]


class LayerStruct(ctypes.Structure):
    """``outrider_layer``."""

    _fields_ = (
        *((name, WeightStruct) for name in ("q", "k", "v", "out", "gate", "up", "down")),
        *((name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm", "embedding_norm")),
    )


class ModelStruct(ctypes.Structure):
    """``outrider_model``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "inner")),
        *((name, ctypes.c_int32) for name in ("window", "positions")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("rotations", "layer", "final_norm", "embedding", "head")),
    )


class CacheStruct(ctypes.Structure):
    """``outrider_cache``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("type", "block")),
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "key_scales", "value_scales")),
    )


class SpanStruct(ctypes.Structure):
    """``outrider_span``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("start", "count", "mask_rows", "mask_keys")),
        *((name, ctypes.c_void_p) for name in ("table", "mask")),
    )


class BatchStruct(ctypes.Structure):
    """``outrider_batch``."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "spans", "layers", "features", "logit_rows", "reserved")),
        *((name, ctypes.c_void_p) for name in ("tokens", "positions", "inputs", "span", "feature_layers")),
        *(
            (name, ctypes.c_void_p)
            for name in ("logit_row", "feature", "hidden_out", "logits", "residual", "embeddings")
        ),
    )
