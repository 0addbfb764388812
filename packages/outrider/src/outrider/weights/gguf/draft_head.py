"""A draft head in a GGUF file of its own, ``mtp-NAME.gguf`` beside the model's, as llama.cpp's converter writes it.

The file has the head's block, at the place behind the model's layers, and copies of embedding and LM head, which are
not read.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.utils.json_files import shown
from outrider.weights.families import FAMILIES
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.files.layout import check_shapes
from outrider.weights.files.parts import find_parts, stored_parts
from outrider.weights.gguf.config import kind_of_gguf, read_gguf_config
from outrider.weights.gguf.reader import difference, family_names, family_shape, map_tensors
from outrider.weights.gguf.shards import read_gguf

__all__ = ["HEADS", "find_draft_head", "with_draft_head"]

logger = logging.getLogger(__name__)

HEADS = "mtp-*.gguf"
"""Names of files that hold a draft head."""


def find_draft_head(gguf: Path) -> Path | None:
    """The file of the draft head beside a model's file: the one of its name, else the largest; None: there is none."""
    found = [path for path in sorted(gguf.parent.glob(HEADS)) if path.name != gguf.name and path.is_file()]
    named = [path for path in found if path.name == f"mtp-{gguf.name}"]
    return next(iter(named), max(found, key=lambda path: path.stat().st_size, default=None))


def with_draft_head(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """The model with the head in ``path``; unchanged, after a line in the log, if the head cannot be its own.

    A model that has a head, or is of a family without one, stays as it is.
    """
    if checkpoint.config.mtp_layers or not FAMILIES[checkpoint.config.family].has_draft_head:
        return checkpoint
    try:
        return _joined(checkpoint, path)
    except ModelFormatError as error:
        logger.warning("%s is not used as a draft head: %s", path, error)
        return checkpoint


def _joined(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    header = read_gguf(path)
    own, kind = read_gguf_config(path, header), kind_of_gguf(header)
    names, own = family_names(path, header, kind, own)
    if not own.mtp_layers:
        raise ModelFormatError(f"{path} has no head of one block: {own.family} has one")
    config: ModelConfig = replace(checkpoint.config, mtp_layers=1)
    differs = difference(replace(config, tie_embeddings=own.tie_embeddings), own)
    if differs is not None:
        name, said, found_there = differs
        raise ModelFormatError(f"the model has {name}={shown(said)}, and the head {shown(found_there)}")
    parts, expected = find_parts(config, kind.own_name(FAMILIES[config.family], names), interleaved=kind.interleaved)
    parts = {name: part for name, part in parts.items() if name.startswith("mtp.")}
    read = {part.tensor for part in parts.values()}
    names = {name: raw for name, raw in names.items() if name in read}
    found = {name: family_shape(name, header.tensors[raw].shape) for name, raw in names.items()}
    embedding = {"model.embed_tokens.weight": expected["model.embed_tokens.weight"]}
    check_shapes(config, {name: expected[name] for name in read} | embedding, found | embedding, path)
    return replace(
        checkpoint, config=config, stored={**checkpoint.stored, **stored_parts(parts, map_tensors(header, names))}
    )
