"""Structs of ``native.h`` and ``pack.h`` that describe one matrix or constant keys, field by field."""

from __future__ import annotations

import ctypes

__all__ = ["FixedKeysStruct", "SourceStruct", "WeightStruct"]


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
