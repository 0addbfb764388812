"""Sliding windows in ``config.json``: the number of positions that each layer attends to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.errors import ModelFormatError
from outrider.weights.families.base import Family, Raw, flag, layer_kinds, num_layers
from outrider.weights.values import positive_integer

__all__ = ["read_windows"]

_WINDOWED = "sliding_attention"
_NAME_KINDS = ("qwen2", "qwen3", "smollm3")
"""Families for which transformers names each layer's kind where the file does not."""


def read_windows(raw: Raw, family: Family) -> dict[str, Any]:
    """``sliding_window`` and ``window_layers`` of ``ModelConfig``, as transformers derives them from the same keys.

    Raises ``ModelFormatError`` where a layer would have one window in attention and another in transformers' cache.
    """
    if family.windows == "of its own":
        return {}
    kinds, window = layer_kinds(raw), _window(raw, family)
    if kinds is None and window is None and family.name not in _NAME_KINDS:
        _check_chunks(raw, family)
    if family.windows == "by kind":
        return _by_kind(kinds or _implied(raw, family, window), window)
    if kinds is not None and _WINDOWED in kinds and (family.windows == "none" or window is None or len(set(kinds)) > 1):
        raise ModelFormatError(f"layer_types names {_WINDOWED}, which is not supported for {family.name} models")
    if family.windows == "all":
        return {"sliding_window": window}
    if kinds is None and window is not None and window < positive_integer(raw, "max_position_embeddings"):
        raise ModelFormatError(
            f"sliding_window={window} is not supported for {family.name} models, whose attention has none: use null"
        )
    return {}


def _check_chunks(raw: Raw, family: Family) -> None:
    """Raise ``ModelFormatError`` for chunks that transformers' cache would apply, and no layer's attention."""
    chunk = raw.get("attention_chunk_size")
    if isinstance(chunk, int) and chunk < positive_integer(raw, "max_position_embeddings"):
        raise ModelFormatError(f"attention_chunk_size={chunk} is not supported for {family.name} models: use null")


def _window(raw: Raw, family: Family) -> int | None:
    """``sliding_window``, or None if it is off.

    Families with ``use_sliding_window`` read both keys; SmolLM3 reads the switch only where no kinds are given.
    """
    used = "use_sliding_window" not in family.defaults or family.name == "smollm3" or flag(raw, "use_sliding_window")
    return positive_integer(raw, "sliding_window") if used and raw.get("sliding_window") is not None else None


def _implied(raw: Raw, family: Family, window: int | None) -> list[str]:
    """The kind of each layer for a file without ``layer_types``."""
    layers = num_layers(raw)
    if window is None:
        windowed: Sequence[bool] = [False] * layers
    elif family.name == "smollm3":  # the layers that do not rotate
        used, rotated = flag(raw, "use_sliding_window"), family.read(raw)["rope_layers"]
        windowed = [used and not rotated[layer] for layer in range(layers)]
    elif "max_window_layers" in family.defaults:
        full = raw["max_window_layers"]
        windowed = [layer >= (full and positive_integer(raw, "max_window_layers")) for layer in range(layers)]
    else:
        windowed = [True] * layers
    return [_WINDOWED if here else "full_attention" for here in windowed]


def _by_kind(kinds: Sequence[str], window: int | None) -> dict[str, Any]:
    windowed = tuple(kind == _WINDOWED for kind in kinds)
    if not any(windowed):
        return {}
    if window is None:
        raise ModelFormatError(f"layer_types names {_WINDOWED}, but there is no sliding_window: correct one")
    return {"sliding_window": window} | ({} if all(windowed) else {"window_layers": windowed})
