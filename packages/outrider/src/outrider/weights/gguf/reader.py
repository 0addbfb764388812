"""GGUF files as checkpoints: metadata to ``ModelConfig``, tensors under their Hugging Face names."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.native.stored import StoredTensor
from outrider.utils.json_files import shown
from outrider.weights.families import FAMILIES
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.files.layout import check_counts, check_shapes, unread_tensors
from outrider.weights.files.parts import find_parts, stored_parts
from outrider.weights.gguf.config import kind_of_gguf, read_gguf_config
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.rope import ROPE_TENSORS
from outrider.weights.gguf.shards import read_gguf


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
    weights = header.tensors.keys() - set(ROPE_TENSORS)
    names = {kind.family_name(name): name for name in sorted(weights)}
    if len(names) != len(weights):
        raise ModelFormatError(f"{path} names a tensor twice: download it again")
    if config is not None:
        _check_same(config, own, path)
    config = config or own
    check_counts(config, len(names), path)
    parts, expected = find_parts(config, kind.own_name(FAMILIES[config.family]), interleaved=kind.interleaved)
    check_shapes(config, expected, {name: header.tensors[raw].shape for name, raw in names.items()}, path)
    for name in unread_tensors(expected, names):  # llama.cpp counts tensors, and refuses a file that has more
        raise ModelFormatError(
            f"{path}: tensor {shown(name)} belongs to no {config.family} model: merge adapters first"
        )
    maps = {file: np.memmap(file, mode="r", dtype=np.uint8) for file in {t.file for t in header.tensors.values()}}
    files = {}
    for name, raw in names.items():
        info = header.tensors[raw]
        files[name] = StoredTensor(info.type.name, info.shape, maps[info.file][info.start : info.stop])
    stored = stored_parts(parts, files)
    return Checkpoint(config, stored, quantised=True)


def _check_same(config: ModelConfig, own: ModelConfig, path: Path) -> None:
    free = ("eos_token_ids", "bos_token_id", "max_seq_len")
    for field in fields(ModelConfig):
        said, found = getattr(config, field.name), getattr(own, field.name)
        if field.name not in free and said != found:
            raise ModelFormatError(
                f"{path.parent / 'config.json'} has {field.name}={shown(said)}, but {path.name} says {shown(found)}: "
                "give the GGUF file itself, without a config.json"
            )
