"""What opening a model's files gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from outrider.kernels.native.stored import StoredTensor
from outrider.models.config import ModelConfig

__all__ = ["Checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, its tensors under canonical Hugging Face names."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    """Numbers, read when asked for: mapped where the file holds floats, computed in bfloat16 from quantised blocks."""
    stored: Mapping[str, StoredTensor]
    """The same tensors as the file holds them: views of the mapped file."""
