"""GGUF files as checkpoints: metadata to ``ModelConfig``, tensors under their Hugging Face names."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig, RecurrentLayers
from outrider.models.latent import LatentAttention
from outrider.native.stored import StoredTensor
from outrider.utils.json_files import shown
from outrider.weights.families import FAMILIES
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.files.layout import check_counts, check_shapes, unread_tensors
from outrider.weights.files.parts import find_parts, stored_parts
from outrider.weights.gguf.config import kind_of_gguf, num_draft_layers, read_gguf_config
from outrider.weights.gguf.copies import OWN, is_copy
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.names import GGUFFamily
from outrider.weights.gguf.rope import ROPE_TENSORS
from outrider.weights.gguf.shards import read_gguf

logger = logging.getLogger(__name__)


def open_gguf(path: Path, config: ModelConfig | None = None, header: GGUFHeader | None = None) -> Checkpoint:
    """Open a GGUF file, or all parts of a split model by the path of one part.

    ``config`` is that of a ``config.json`` beside it; only beginning- and end-of-text ids and context may differ from
    the file's. ``header`` is that of all parts, if it was read before.

    Raises ``ModelFormatError`` for damaged files, for architectures, rotary scalings and keys that are not implemented,
    for a ``config`` that describes another model, and, when a tensor is asked for, for quantisations that cannot be
    read.
    """
    header = header or read_gguf(path)
    own, kind = read_gguf_config(path, header), kind_of_gguf(header)
    names, own = family_names(path, header, kind, own)
    config = own if config is None else _checked(config, own, path)
    check_counts(config, len(names), path)
    own_name = kind.own_name(FAMILIES[config.family], names)
    parts, expected = find_parts(config, own_name, interleaved=kind.interleaved)
    found = {name: family_shape(name, header.tensors[raw].shape) for name, raw in names.items()}
    check_shapes(config, expected, found, path)
    for name in unread_tensors(expected, names):  # llama.cpp counts tensors, and refuses a file that has more
        raise ModelFormatError(
            f"{path}: tensor {shown(name)} belongs to no {config.family} model: merge adapters first"
        )
    return Checkpoint(config, stored_parts(parts, map_tensors(header, names)), quantised=True)


def map_tensors(header: GGUFHeader, names: Mapping[str, str]) -> dict[str, StoredTensor]:
    """Views of the mapped files' tensors, by the keys of ``names``."""
    found = {name: header.tensors[raw] for name, raw in names.items()}
    maps = {file: np.memmap(file, mode="r", dtype=np.uint8) for file in {t.file for t in header.tensors.values()}}
    return {
        name: StoredTensor(info.type.name, info.shape, maps[info.file][info.start : info.stop])
        for name, info in found.items()
    }


def family_names(
    path: Path, header: GGUFHeader, kind: GGUFFamily, config: ModelConfig
) -> tuple[dict[str, str], ModelConfig]:
    """The file's names by the family's, and the configuration with the draft head that can be used, if there is one.

    A head with an embedding of its own, or several, would draft otherwise than it was trained to: it is left out.
    """
    heads = num_draft_layers(header)
    layers = config.num_layers if heads else None
    weights = header.tensors.keys() - set(ROPE_TENSORS)
    names = {kind.family_name(name, layers): name for name in sorted(weights)}
    if len(names) != len(weights):
        raise ModelFormatError(f"{path} names a tensor twice: download it again")
    if not heads:
        return names, config
    if heads == 1:
        names = {name: raw for name, raw in names.items() if not is_copy(name, names, header)}
    if heads == 1 and FAMILIES[kind.family].has_draft_head and not names.keys() & OWN:
        names.setdefault("mtp.norm.weight", names.get("model.norm.weight", "output_norm.weight"))
        return names, config
    logger.warning("%s: its draft head has %d blocks, or what is not known here, and is not used", path, heads)
    return {name: raw for name, raw in names.items() if not name.startswith("mtp.")}, replace(config, mtp_layers=0)


def family_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that the family's own files have, of a tensor from which llama.cpp's converter takes a dimension of 1.

    Files have the gate of a shared expert, and ERNIE's bias of scores, with and without it.
    """
    if name.endswith((".conv1d.weight", ".conv.conv.weight")) and len(shape) == 2:
        return shape[0], 1, shape[1]
    if name.endswith((".mamba.D", ".mamba.norm.weight", ".mixer.D", ".mixer.norm.weight", ".linear_attn.decay")):
        return (math.prod(shape),)
    if name.endswith((".k_b_proj.weight", ".v_b_proj.weight")) and len(shape) == 3:
        return shape[0] * shape[1], shape[2]
    if name.endswith(".e_score_correction_bias"):
        return shape[-1:] if shape[0] == 1 else shape
    return (1, *shape) if name.endswith(".shared_expert_gate.weight") and len(shape) == 1 else shape


def _checked(config: ModelConfig, own: ModelConfig, path: Path) -> ModelConfig:
    """``config``, with what the file has of its own: see ``difference``."""
    _check_same(config, own, path)
    return replace(config, recurrent=own.recurrent, latent=own.latent, mtp_layers=own.mtp_layers)


def _check_same(config: ModelConfig, own: ModelConfig, path: Path) -> None:
    differs = difference(config, own)
    if differs is not None:
        name, said, found = differs
        raise ModelFormatError(
            f"{path.parent / 'config.json'} has {name}={shown(said)}, but {path.name} says {shown(found)}: "
            "give the GGUF file itself, without a config.json"
        )


def difference(config: ModelConfig, own: ModelConfig) -> tuple[str, object, object] | None:
    """The first field in which two configurations describe different models, and both values; None: they do not.

    The order of value heads, the draft head and the epsilon of latents' norms are of the file alone.
    """
    free = ("eos_token_ids", "bos_token_id", "max_seq_len", "mtp_layers")
    for field in fields(ModelConfig):
        said, found = (_comparable(getattr(each, field.name)) for each in (config, own))
        if field.name not in free and said != found:
            return field.name, said, found
    return None


def _comparable(value: Any) -> Any:
    if isinstance(value, LatentAttention):
        return replace(value, eps=0.0)
    return replace(value, tiled=False) if isinstance(value, RecurrentLayers) else value
