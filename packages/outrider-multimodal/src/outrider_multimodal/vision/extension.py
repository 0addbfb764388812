"""The extension through which the core opens images in prompts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.models.base import LoadedModel
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.families.elsewhere import is_vision_language
from outrider_multimodal.vision.prompts import split_prompt

if TYPE_CHECKING:
    from outrider_multimodal.vision.vision import Vision

__all__ = ["open_vision", "split_prompt"]


def open_vision(folder: Path, tokenizer: Tokenizer, model: LoadedModel) -> Vision | str:
    """The ``Vision`` of a model, or the reason for its absence: without Pillow the model still reads text."""
    if not is_vision_language(folder):
        return "this model reads text only"
    if importlib.util.find_spec("PIL") is None:
        return "images need Pillow (pip install 'outrider[vision]')"
    from outrider_multimodal.vision.vision import Vision  # torch

    return Vision(folder, tokenizer, device=model.device, context=model.config.max_seq_len)
