"""The opened files of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from outrider.models.config import ModelConfig
from outrider.native.stored import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, its tensors under canonical Hugging Face names."""

    config: ModelConfig
    stored: Mapping[str, StoredTensor]
    """Tensors as the file holds them: views of the mapped file."""
    quantised: bool = False
    """Whether ``tensors`` are computed from quantised blocks."""

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Numbers of torch, read when asked for: mapped where the file holds floats, else computed in bfloat16."""
        from outrider.weights.files.tensors import StoredTensors  # torch, which the native library does without

        return StoredTensors(self.stored, quantised=self.quantised)
