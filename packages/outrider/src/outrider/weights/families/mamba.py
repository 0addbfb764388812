"""Mamba-2 layers of a family: sizes, and names of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from outrider.errors import ModelFormatError
from outrider.models.config import RecurrentLayers
from outrider.utils.json_files import shown
from outrider.weights.families.base import Raw

__all__ = ["check_time_steps", "checked_mamba", "mamba_names"]


def checked_mamba(found: RecurrentLayers) -> RecurrentLayers:
    """``found``, whose key heads are Mamba's groups. Raises ``ModelFormatError`` for sizes that are not supported."""
    if found.value_heads % found.key_heads:
        raise ModelFormatError(
            f"{found.key_heads} groups do not divide {found.value_heads} heads: download the model again"
        )
    if found.convolution < 2:
        raise ModelFormatError("a convolution of 1 row is not supported: one of 2 rows or more is")
    return found


def check_time_steps(raw: Raw) -> None:
    """Raise ``ModelFormatError`` where ``time_step_limit`` limits the steps in time, which are never negative."""
    limits = raw["time_step_limit"]
    if limits is None:
        return
    ends = [_number(end) for end in limits] if isinstance(limits, list | tuple) else []
    if ends != [0.0, math.inf]:
        raise ModelFormatError(f"time_step_limit={shown(limits)} is not supported: only [0, Infinity] is")


def _number(end: Any) -> float | None:
    """A number; transformers 5 writes infinity as an object."""
    if isinstance(end, Mapping):
        end = {"Infinity": math.inf}.get(str(end.get("__float__")))
    return float(end) if isinstance(end, int | float) and not isinstance(end, bool) else None


def mamba_names(prefix: str) -> dict[str, str]:
    """Canonical names of a layer's tensors to the family's, which begin with ``prefix``."""
    return {
        **dict.fromkeys((f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "a")), f"{prefix}.in_proj"),
        **{f"linear_attn.{name}": f"{prefix}.{name}" for name in ("conv1d", "norm", "out_proj", "dt_bias")},
        "linear_attn.decay": f"{prefix}.A_log",
        "linear_attn.skip": f"{prefix}.D",
    }
