"""Numbers in a configuration, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown

_LARGEST = 2**31 - 1  # more than any dimension of a real model; a product of two fits 64 bits


def positive_integer(raw: Mapping[str, Any], key: str) -> int:
    """``raw[key]``, from 1 to 2**31 - 1. Raises ``ModelFormatError`` for another value, or a missing key."""
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _LARGEST:
        raise ModelFormatError(f"{key}={shown(value)} is not a positive integer: download the model again")
    return value


def positive(raw: Mapping[str, Any], key: str) -> float:
    """``raw[key]``, finite and above 0. Raises ``ModelFormatError`` for another value, or a missing key."""
    value = raw.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e18:  # false for NaN
        raise ModelFormatError(f"{key}={shown(value)} is not a positive number: download the model again")
    return float(value)
