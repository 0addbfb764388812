"""The opened files of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.models.config import ModelConfig
from outrider.native.stored import StoredTensor

__all__ = ["Checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, its tensors under canonical Hugging Face names."""

    config: ModelConfig
    stored: Mapping[str, StoredTensor]
    """Tensors as the file holds them: views of the mapped file."""
    quantised: bool = False
    """Whether the tensors come from a GGUF file; torch then converts all of them to bfloat16."""
