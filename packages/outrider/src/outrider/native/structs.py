"""Structs of ``native.h`` and ``pack.h`` that describe one matrix, constant keys or texts, field by field."""

from __future__ import annotations

import ctypes

__all__ = ["CopyStruct", "FixedKeysStruct", "RetrievalStruct", "SourceStruct", "WeightStruct"]


class WeightStruct(ctypes.Structure):
    """``outrider_weight``: a packed matrix."""

    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in ("layout", "bits", "group", "scales", "has_minimum", "has_table", "first")
        ),
        ("unit", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("super_block", "reserved")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs", "groups", "panel_bytes")),
        *((name, ctypes.c_void_p) for name in ("panels", "bias")),
        ("values", ctypes.c_int8 * 16),
    )


class SourceStruct(ctypes.Structure):
    """``outrider_source``: a matrix as a file has it."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("type", "target")),
        *((name, ctypes.c_int64) for name in ("rows", "inputs", "outputs")),
        *((name, ctypes.c_void_p) for name in ("order", "data")),
        ("data_bytes", ctypes.c_int64),
        ("grid", ctypes.c_void_p),
        ("grid_bytes", ctypes.c_int64),
        ("values", ctypes.c_int8 * 16),
        ("scales", ctypes.c_void_p),
        ("scale_bytes", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("transposed", "reserved")),
    )


class FixedKeysStruct(ctypes.Structure):
    """``outrider_fixed_keys``: keys and values that never change."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("type", "heads", "head_dim", "length")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
    )


class CopyStruct(ctypes.Structure):
    """``outrider_copy``: a place that a text is being copied from."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("table", "edited", "match", "reserved")),
        ("end", ctypes.c_int64),
    )


class RetrievalStruct(ctypes.Structure):
    """``outrider_retrieval``: what the tokens to come may be copied from."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("text", "answers", "stored", "order", "edits", "copies")),
        *((name, ctypes.c_int64) for name in ("tokens", "answered", "stored_tokens", "places", "edited_tokens")),
        *((name, ctypes.c_void_p) for name in ("weights", "kinds")),
        *((name, ctypes.c_int32) for name in ("num_copies", "num_weights", "tables", "own_limit", "other_limit")),
        *((name, ctypes.c_int32) for name in ("nodes", "depth", "branching", "free_nodes", "reserved")),
        *((name, ctypes.c_double) for name in ("least", "least_ever")),
    )
