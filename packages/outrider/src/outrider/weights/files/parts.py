"""Finds the model's canonical tensors in a file's tensors: names, fused matrices, order of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from outrider.models.config import ModelConfig, RecurrentLayers
from outrider.models.latent import LatentAttention
from outrider.native.stored import StoredTensor
from outrider.weights.files.heads import BOTH, rows_of_heads
from outrider.weights.files.layout import expected_shapes
from outrider.weights.files.side_by_side import rows_of
from outrider.weights.paired_experts import ExpertPlace, Pairing, cut_expert, file_shapes, place_of

__all__ = ["TensorPart", "find_parts", "pair_order", "stored_parts"]

Shape = tuple[int, ...]
Pairs = tuple[int, int, int | None, bool, bool]
"""Arguments of ``pair_order``."""


@dataclass(frozen=True, eq=False)
class TensorPart:
    """The rows of a file's tensor that hold one of the model's tensors."""

    tensor: str
    """Name of the file's tensor."""
    shape: Shape
    """Shape of the model's tensor."""
    first: int = 0
    """First row of the part in the file's tensor; all dimensions but the last count as rows."""
    pairs: Pairs | None = None
    """How rotary pairs lie in the rows of q and k."""
    plus: float = 0.0
    """Added to every number."""
    side_by_side: tuple[str, RecurrentLayers] | None = None
    """Arguments of ``rows_of``: the part's rows lie among others in the whole tensor, and ``first`` is 0."""
    of_heads: tuple[str, int, LatentAttention, bool, bool] | None = None
    """Arguments of ``rows_of_heads``: the part's rows are those of the whole tensor, and ``first`` is 0."""
    expert: ExpertPlace | None = None
    """The part lies in a stack of experts, and ``first`` is 0."""
    negative_exponential: bool = False
    """Each number x means -e to the power of x."""

    @property
    def order(self) -> NDArray[np.int64] | None:
        """The part's row for each row of the model's tensor; None if they are the same."""
        if self.side_by_side is not None:
            return rows_of(*self.side_by_side)
        if self.of_heads is not None:
            return rows_of_heads(*self.of_heads)
        return None if self.pairs is None else pair_order(*self.pairs)

    @property
    def num_swapped(self) -> int:
        """Blocks of rows whose rows and columns are to be exchanged: those of a file's rows for keys."""
        if self.of_heads is None or not self.tensor.endswith(BOTH) or self.of_heads[0] != "k_b_proj":
            return 0
        return self.of_heads[1]


def find_parts(
    config: ModelConfig,
    own_name: Callable[[str], str],
    *,
    interleaved: bool,
    norm_offset: float = 0.0,
    paired_experts: Pairing = "",
) -> tuple[dict[str, TensorPart], dict[str, Shape]]:
    """The part for each canonical name, and the shapes that the file's tensors must have.

    Canonical tensors that share a name in the file are fused: their rows follow one another. Experts are stacked along
    the first dimension.

    Args:
        own_name: the file's name for a canonical name.
        interleaved: whether rotary pairs are adjacent rows in the file.
        norm_offset: added to the weights of norms.
        paired_experts: experts are stacked as ``paired_experts`` says.
    """
    parts: dict[str, TensorPart] = {}
    files: dict[str, Shape] = {}
    for name, shape in expected_shapes(config).items():
        own = own_name(name)
        if paired_experts and config.experts is not None and ".experts." in name:
            place = place_of(name, config.experts.count, paired_experts)
            parts[name] = TensorPart(own, shape, expert=place)
            files |= file_shapes(own, shape, place)
            continue
        first = files[own][0] if own in files else 0
        files[own] = (first + shape[0], *shape[1:])
        fused, of_heads = _side_by_side(name, own, config), _of_heads(name, own, config, interleaved)
        if of_heads is not None and own.endswith(BOTH):
            _, heads, sizes, *_ = of_heads
            files[own] = heads * (sizes.plain + sizes.value_dim), sizes.rank
        parts[name] = TensorPart(
            own,
            shape,
            0 if fused or of_heads else first,
            None if of_heads else _pairs(name, config, interleaved),
            norm_offset if _is_norm(name) else 0.0,
            fused,
            of_heads,
            negative_exponential=own.endswith(".A_log"),
        )
    experts = config.experts.count if config.experts is not None else 0
    for own in {p.tensor for name, p in parts.items() if ".experts." in name and p.first}:
        files[own] = (experts, files[own][0] // experts, *files[own][1:])
    for own in {part.tensor for name, part in parts.items() if name.endswith(".conv1d.weight")}:
        channels, rows = files[own]
        files[own] = channels, 1, rows  # each channel reads its own rows only
    for own in (own for own in files if own.endswith(".moe_statics.e_score_correction_bias")):
        files[own] = 1, *files[own]
    return parts, files


def _is_norm(name: str) -> bool:
    """Whether a tensor is the weight of a norm to which a family may add; those of recurrent heads have all of it."""
    stem, _, kind = name.rpartition(".")
    return kind == "weight" and "norm" in stem.rpartition(".")[2] and not stem.endswith("linear_attn.norm")


def _side_by_side(name: str, own: str, config: ModelConfig) -> tuple[str, RecurrentLayers] | None:
    if config.recurrent is None or ".linear_attn." not in name:
        return None
    stem, kind = own.rpartition(".")[0], name.rpartition("linear_attn.")[2].partition(".")[0]
    mamba = config.recurrent.kind == "mamba2"
    if not stem.endswith((".in_proj", ".conv1d") if mamba else (".in_proj_qkvz", ".in_proj_ba")):
        return None
    return kind.removeprefix("in_proj_"), config.recurrent


def _of_heads(
    name: str, own: str, config: ModelConfig, interleaved: bool
) -> tuple[str, int, LatentAttention, bool, bool] | None:
    if config.latent is None or ".self_attn." not in name or _is_norm(name):
        return None
    part = name.rpartition("self_attn.")[2].partition(".")[0]
    return part, config.num_heads, config.latent, interleaved, own.endswith(BOTH)


@lru_cache(maxsize=8)
def pair_order(
    heads: int, head_dim: int, rotary_dim: int | None, interleaved: bool, gated: bool = False
) -> NDArray[np.int64] | None:
    """The order of rows that puts both parts of every rotary pair half a head apart; None if the file has it already.

    Dimensions without rotation fill up both halves: their pairs have the angle 0. ``gated``: behind the rows of each
    head as many of its gate follow, whose order stays.

    A head of 4 rows, by rotary pair and part:   (0,re) (0,im) (1,re) (1,im)  ->  (0,re) (1,re) (0,im) (1,im)
    A head of 4, its first half rotated:         (0,re) (0,im)  a  b          ->  (0,re)   a    (0,im)   b
    """
    turned = rotary_dim or head_dim
    if turned == head_dim and not interleaved:
        return None
    pairs, rest = np.arange(turned), np.arange(turned, head_dim)
    real, imaginary = (pairs[0::2], pairs[1::2]) if interleaved else (pairs[: turned // 2], pairs[turned // 2 :])
    own = np.concatenate([real, rest[: len(rest) // 2], imaginary, rest[len(rest) // 2 :]])
    if gated:
        own = np.concatenate([own, np.arange(head_dim, 2 * head_dim)])
    order: NDArray[np.int64] = (np.arange(heads)[:, None] * len(own) + own).reshape(-1)
    return order


def _pairs(name: str, config: ModelConfig, interleaved: bool) -> Pairs | None:
    """How the rows of q and k lie, and the numbers of the norms on their heads."""
    stem = name.rpartition("self_attn.")[2].partition(".")[0]
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    whole = config.whole_qk_norm
    heads |= {"q_norm": config.num_heads if whole else 1, "k_norm": config.num_kv_heads if whole else 1}
    if stem not in heads:
        return None
    gated = stem == "q_proj" and config.gated_attention
    return heads[stem], config.head_dim, config.rotary_dim, interleaved, gated


def stored_parts(parts: Mapping[str, TensorPart], files: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The model's tensors as views of the files' tensors, with an LM head of the file that no part names."""
    stored = {
        name: _cut(files[part.tensor], part)
        if part.expert is None
        else cut_expert(part.tensor, part.shape, part.expert, files)
        for name, part in parts.items()
    }
    return stored | {name: files[name] for name in files.keys() & {"lm_head.weight"} if name not in stored}


def _cut(tensor: StoredTensor, part: TensorPart) -> StoredTensor:
    rows = math.prod(tensor.shape if len(part.shape) == 1 else tensor.shape[:-1])
    size = len(tensor.data) // max(rows, 1)  # bytes of a row: no quantisation block spans two rows
    count = rows if part.side_by_side or part.of_heads else part.shape[0]
    columns = tensor.shape[-1:] if part.of_heads and len(part.shape) > 1 else part.shape[1:]
    return replace(
        tensor,
        shape=(count, *columns),
        data=tensor.data[part.first * size : (part.first + count) * size],
        order=part.order,
        swapped=part.num_swapped,
        plus=part.plus,
        negative_exponential=part.negative_exponential,
    )
