"""Folders of vision–language models: their text part, read as a model of its own family.

``text_config`` is read as that family's ``config.json``, and the tensors of the text part get that family's names. The
vision tower is loaded separately (``vision.tower``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import read_json_object, shown
from outrider.weights.families import FAMILIES
from outrider.weights.hf_config.keys import READ, check_safe


@dataclass(frozen=True, kw_only=True)
class VisionLanguageFamily:
    """The differences between families; their classes are transformers'."""

    name: str
    """``model_type`` in ``config.json``."""
    text_part: str
    """The attribute of transformers' base model that is the text part."""


VISION_LANGUAGE: Mapping[str, VisionLanguageFamily] = {
    family.name: family
    for family in (
        VisionLanguageFamily(name="smolvlm", text_part="text_model"),
        VisionLanguageFamily(name="idefics3", text_part="text_model"),
    )
}

_HARMLESS = frozenset(("architectures", "perceiver_config", "pixel_shuffle_factor", "use_resampler", "qk_layer_norms"))
"""Keys of ``text_config`` that transformers' code ignores: the connector's sizes are under other keys."""


def text_config(folder: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The text part's ``config.json``, with the defaults that transformers gives it in this family.

    Args:
        raw: the folder's ``config.json``.

    Raises:
        ModelFormatError: transformers refuses the file, or the text part's family is not supported.
    """
    family = VISION_LANGUAGE[raw["model_type"]]
    given = raw.get("text_config") or {}
    if not isinstance(given, dict):
        raise ModelFormatError(f"text_config={shown(given)} is no object: download the model again")
    for part in (raw, given):
        check_safe(part, (), "AutoModelForImageTextToText")
    config = transformers_config(folder)
    own = config.text_config.to_dict()
    kind = FAMILIES.get(own.get("model_type", ""))
    if kind is None:
        raise ModelFormatError(
            f"text_config.model_type={shown(own.get('model_type'))} is not supported in {family.name}: use one of "
            f"{', '.join(FAMILIES)}"
        )
    known = given.keys() | READ | kind.defaults.keys() | kind.keys
    text = {key: value for key, value in own.items() if key in known - _HARMLESS}
    return text | {"model_type": kind.name, "tie_word_embeddings": bool(config.tie_word_embeddings)}


def transformers_config(folder: Path) -> Any:
    """The whole configuration as an object of transformers. Raises ``ModelFormatError`` if that refuses it."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - any error of foreign code is a fault of the file
        reason = " ".join(str(error).split())[:200]
        raise ModelFormatError(f"{folder / 'config.json'}: transformers refuses it: {reason}") from None


def text_names(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The folder's names of text tensors, by the names in the text part's family."""
    family = VISION_LANGUAGE[read_json_object(folder / "config.json")["model_type"]]
    prefix = f"model.{family.text_part}."
    own = {f"model.{name.removeprefix(prefix)}": name for name in names if name.startswith(prefix)}
    return own | {name: name for name in names if name == "lm_head.weight"}
