"""Models of text and images whose text part is a family of ours: the images are not computed, and the text is.

``config.json`` describes the text part in ``text_config``; its tensors are ``model.language_model.*``, ``lm_head`` and
``mtp.*``, and in Llama 4 ``language_model.*``; others are of the parts that see and hear.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.families import FAMILIES
from outrider.weights.families.elsewhere import TEXT_PARTS
from outrider.weights.hf_config.keys import check_safe

__all__ = ["text_config", "text_tensors", "vision_tensors"]

_TEXT = "model.language_model."
_WHOLE = "language_model."  # Llama 4: before all names of the text part
_VISION = (
    "vision_model.", "multi_modal_projector.", "model.visual.", "model.vision_tower.", "model.embed_vision.",
    "model.audio_tower.", "model.embed_audio.",
)  # fmt: skip


def text_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The text part's ``config.json``. Raises ``ModelFormatError`` if the whole has none, or of another family.

    Whether the LM head is the embedding is said by the whole, as in transformers.
    """
    check_safe(raw, (), "AutoModelForImageTextToText")
    whole, text = raw["model_type"], raw.get("text_config")
    family = TEXT_PARTS[whole]
    if not isinstance(text, dict):
        raise ModelFormatError(f"text_config={shown(text)} is no object: download the model again")
    if text.get("model_type", family) != family:
        raise ModelFormatError(f"text_config.model_type={shown(text['model_type'])} is not {family}, as {whole} needs")
    own = {key: raw[key] for key in ("eos_token_id", "bos_token_id") if key in raw and key not in text}
    tied = FAMILIES[family].defaults["tie_word_embeddings"]
    return {**text, **own, "model_type": family, "tie_word_embeddings": raw.get("tie_word_embeddings", tied)}


def text_tensors(names: Iterable[str]) -> dict[str, str]:
    """Names in the file of all but the vision part's tensors, by the text family's names."""
    kept = [name for name in names if not name.startswith(_VISION)]
    return {
        f"model.{name.removeprefix(_TEXT)}" if name.startswith(_TEXT) else name.removeprefix(_WHOLE): name
        for name in kept
    }


def vision_tensors(names: Iterable[str]) -> int:
    """The number of tensors of the vision part."""
    return sum(name.startswith(_VISION) for name in names)
