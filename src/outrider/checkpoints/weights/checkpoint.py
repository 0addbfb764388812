"""What opening a model's files gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outrider.kernels.native.stored import StoredTensor
from outrider.models.config import ModelConfig

__all__ = ["Checkpoint", "half_split_order"]


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, its tensors under canonical Hugging Face names."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    """Numbers, read when asked for: mapped where the file holds floats, computed in bfloat16 from quantised blocks."""
    stored: Mapping[str, StoredTensor]
    """The same tensors as the file holds them: views of the mapped file."""


def half_split_order(name: str, config: ModelConfig) -> NDArray[np.int64] | None:
    """The row order that takes q and k from interleaved rotary pairs to halves, head by head; None for other tensors.

    A head of 4 rows, by rotary pair and part:  (0,re) (0,im) (1,re) (1,im)  ->  (0,re) (1,re) (0,im) (1,im)
    """
    heads = {"q_proj.weight": config.num_heads, "k_proj.weight": config.num_kv_heads}
    count = heads.get(name.rpartition("self_attn.")[2])
    if count is None:
        return None
    rows = np.arange(count * config.head_dim)
    return rows.reshape(count, config.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
