"""A head's weights as NumPy arrays, and the tensors that its configuration requires."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.drafters.heads.config import HeadConfig
from outrider.errors import ModelFormatError
from outrider.verify.arrays import Floats

NATIVE_KINDS = ("eagle3", "eagle", "dflash")
"""Kinds whose layers the native library computes."""

DRAFT_IDS = "d2t"
"""The tensor of int64 [draft_vocab_size]: the target id of each draft token, ascending."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """A head of ``NATIVE_KINDS`` before its matrices are packed."""

    config: HeadConfig
    tensors: Mapping[str, NDArray[Any]]
    """By the tensor names of published EAGLE-3 checkpoints: float32, but ``DRAFT_IDS`` int64."""

    @property
    def draft_ids(self) -> NDArray[np.int64] | None:
        """int64 [draft_vocab_size]: the tokens that the head scores; None: all of the target's."""
        return self.tensors.get(DRAFT_IDS)

    @property
    def num_weights(self) -> int:
        return sum(tensor.size for name, tensor in self.tensors.items() if name != DRAFT_IDS)

    def get(self, name: str) -> Floats | None:
        """A tensor by name, or None if the head does not have it."""
        return self.tensors.get(name)

    def __getitem__(self, name: str) -> Floats:
        return self.tensors[name]


def head_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a head of ``NATIVE_KINDS``."""
    d, count = config.hidden_size, len(config.feature_layers)
    shapes: dict[str, tuple[int, ...]] = {}
    if config.draft_vocab_size is not None:
        shapes[DRAFT_IDS] = (config.draft_vocab_size,)
    if config.own_lm_head:
        shapes["lm_head.weight"] = (config.scored, d)
    if config.fuses_layers:
        shapes |= {"fc.weight": (d, count * d)} if count else {}
        shapes["norm.weight"] = (d,)
        shapes |= {f"fc_norm.{i}.weight": (d,) for i in range(count if config.fc_norm else 0)}
        if config.norm_before_fc:
            shapes["input_norm.weight"] = (count * d,)
    else:
        shapes |= {"fc.weight": (d, 2 * d), "fc.bias": (d,)}
    for i in range(config.num_layers):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer(config, first=i == 0).items()}
    return shapes | (_block(config) if config.kind == "dflash" else {})


def _layer(config: HeadConfig, *, first: bool) -> dict[str, tuple[int, ...]]:
    d, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    wide = first and config.fuses_layers  # this layer's attention reads a token's embedding beside the feature
    width = 2 * d if wide else d
    shapes: dict[str, tuple[int, ...]] = {"post_attention_layernorm.weight": (d,)}
    if wide:
        shapes["input_layernorm.weight"] = (d,)
    if wide or not first:
        shapes["hidden_norm.weight"] = (d,)
    shapes |= {f"self_attn.{name}_proj.weight": (rows, width) for name, rows in (("q", q), ("k", kv), ("v", kv))}
    shapes |= {f"mlp.{name}_proj.weight": (inner, d) for name in ("gate", "up")}
    return shapes | {"self_attn.o_proj.weight": (d, q), "mlp.down_proj.weight": (d, inner)}


def _block(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """A block drafter's tensors besides its layers: embeddings of a block's rows, and a selector's codebooks."""
    d, rank = config.hidden_size, config.selector_rank
    masks: dict[str, tuple[int, ...]] = {"masks": (config.heads - 1, 2, d)}
    if not rank:
        return masks
    return masks | {"before": (config.scored, rank), "after": (config.scored, rank), "gate": (rank, d)}


def check_draft_ids(ids: NDArray[np.int64], config: HeadConfig) -> None:
    """Raise ``ModelFormatError`` unless ``ids`` are ``draft_vocab_size`` ascending target ids."""
    if ids.shape != (config.draft_vocab_size,):
        raise ModelFormatError(f"d2t has shape {list(ids.shape)}, but draft_vocab_size={config.draft_vocab_size}")
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        worst = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise ModelFormatError(
            f"d2t names token {worst}, but the target has tokens 0 to {config.vocab_size - 1}: train the head again"
        )
    if bool((ids[1:] <= ids[:-1]).any()):
        raise ModelFormatError("d2t is not ascending: a draft token would have two rows, train the head again")
