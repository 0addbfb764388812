"""Families of models that other distributions load, found by ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from outrider.extensions import extension, has_extension
from outrider.native.library import library
from outrider.utils.json_files import read_json_object
from outrider.weights.families import FAMILIES

__all__ = [
    "ENCODER_DECODERS",
    "NATIVE_ONLY",
    "TEXT_PARTS",
    "VISION_LANGUAGE",
    "OtherFamily",
    "family_extension",
    "is_vision_language",
    "other_family",
]

OtherFamily = Literal["encoder_decoder", "vision_language", "transformers"]
"""An extension of the group ``families``."""

ENCODER_DECODERS = frozenset(("t5", "mt5", "bart", "marian", "whisper"))
VISION_LANGUAGE = frozenset(("smolvlm", "idefics3"))

TEXT_PARTS: Mapping[str, str] = {
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
}
"""Models of text and images of which this distribution computes the text: ``model_type`` of the whole and the part."""

NATIVE_ONLY = frozenset(("gemma4_text",))
"""Families of ours that only the native library computes; without it, transformers' code does."""


def other_family(folder: Path) -> OtherFamily | None:
    """The extension that loads the model in ``folder``, by its ``config.json``; None: this distribution loads it.

    A decoder of an encoder–decoder model that was saved by itself is a causal language model.
    """
    path = folder / "config.json"
    if not path.exists():
        return None
    raw = read_json_object(path)
    family = raw.get("model_type")
    if not isinstance(family, str):
        return None
    if family in ENCODER_DECODERS and raw.get("is_encoder_decoder") is not False:
        return "encoder_decoder"
    if family in VISION_LANGUAGE:
        return "vision_language"
    family = TEXT_PARTS.get(family, family)
    ours = family in FAMILIES and (family not in NATIVE_ONLY or library() is not None)
    foreign = not ours and any(folder.glob("*.safetensors")) and has_extension("families", "transformers")
    return "transformers" if foreign and extension("families", "transformers").knows(family) else None


def is_vision_language(folder: Path) -> bool:
    """Whether ``folder`` holds a model of text and images."""
    return other_family(folder) == "vision_language"


def family_extension(family: OtherFamily, folder: Path) -> Any:
    """The module that loads ``family``. Raises ``MissingExtensionError`` naming the folder."""
    asked = {
        "encoder_decoder": "an encoder–decoder model",
        "vision_language": "a model that sees images",
        "transformers": "a model that only transformers' code computes",
    }
    return extension("families", family, f"{folder.name}: the loader of {asked[family]}")
