"""Model folders: ``config.json`` and weights in safetensors files or in GGUF files."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from outrider.errors import ModelFormatError
from outrider.native.stored import StoredTensor
from outrider.utils.json_files import read_json_object, shown
from outrider.weights.families import FAMILIES
from outrider.weights.families.elsewhere import TEXT_PARTS, family_extension, is_vision_language
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.files.layout import check_counts, check_shapes, unread_tensors
from outrider.weights.files.nextn import head_names
from outrider.weights.files.parts import find_parts, stored_parts
from outrider.weights.files.safetensors import TensorInfo, read_header, stored_tensors
from outrider.weights.gguf.draft_head import find_draft_head, with_draft_head
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.gguf.shards import is_shard
from outrider.weights.hf_config.config import read_config
from outrider.weights.hf_config.keys import unread_keys
from outrider.weights.hf_config.multimodal import text_tensors, vision_tensors
from outrider.weights.paired_experts import codes_among

__all__ = [
    "GGUF_WEIGHTS",
    "PICKLE_SUFFIXES",
    "gguf_weights",
    "has_weights",
    "open_checkpoint",
    "open_stored",
    "refuse_pickles",
]

logger = logging.getLogger(__name__)

GGUF_WEIGHTS = "model.gguf"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a folder: ``config.json`` and one or more safetensors files, or ``model.gguf``, or its parts.

    Every expected tensor is checked for presence and shape in the file headers before any tensor is loaded.
    Raises ``ModelFormatError`` naming the file or tensor at fault, the value found and the value expected.
    """
    gguf = gguf_weights(folder)
    if not has_safetensors(folder) and gguf is not None:
        config = read_config(folder)
        checkpoint, head = open_gguf(gguf, config), find_draft_head(gguf)
        return checkpoint if head is None else with_draft_head(checkpoint, head)
    return read_checkpoint(folder, FileTensors(weight_files(folder)), folder)


class TensorSource(Protocol):
    """Tensors by the names that they have in files."""

    @property
    def infos(self) -> Mapping[str, TensorInfo]: ...

    @property
    def files(self) -> Mapping[str, Path]:
        """The file of each tensor; empty for tensors in memory."""
        ...

    def stored(self, places: Mapping[str, str], codes: Collection[str] = ()) -> dict[str, StoredTensor]:
        """Tensors under new names; ``places``: their own names; ``codes``: new names of tensors that are bytes.

        Raises ``ModelFormatError`` for a dtype that they cannot have.
        """
        ...


class FileTensors:
    """The tensors of safetensors files, as a ``TensorSource``."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Raises ``ModelFormatError`` for a file that is missing or damaged, and for a name in two of them."""
        self.files: dict[str, Path] = {}
        self.infos: dict[str, TensorInfo] = {}
        for path in paths:
            if not os.path.isfile(path):  # unlike ``Path.is_file``, False for text that cannot be a path
                raise ModelFormatError(f"{path.parent} has no file {shown(path.name)}: download the model again")
            for name, info in read_header(path).items():
                if name in self.files:
                    both = f"{self.files[name].name} and {path.name}"
                    raise ModelFormatError(f"tensor {shown(name)} is in both {both}: keep one")
                self.files[name], self.infos[name] = path, info

    def stored(self, places: Mapping[str, str], codes: Collection[str] = ()) -> dict[str, StoredTensor]:
        files = {name: self.files[place] for name, place in places.items()}
        return stored_tensors(files, {name: self.infos[place] for name, place in places.items()}, codes)


def read_checkpoint(folder: Path, source: TensorSource, where: Path) -> Checkpoint:
    """The tensors of ``source`` as those of the model in ``folder``; ``where``: names the source in messages.

    Raises as ``open_checkpoint``.
    """
    config = read_config(folder)
    renamed = _text_names(folder, source.infos) or _names_without_prefix(source.infos)
    places = {name: name for name in source.infos} if renamed is None else renamed  # the vision tower is loaded apart
    family = FAMILIES[config.family]
    check_counts(config, len(places), where)
    if family.has_draft_head and source.files:
        files = {name: source.files[place] for name, place in places.items()}
        infos = {name: source.infos[place] for name, place in places.items()}
        if in_head := head_names(config.num_layers, files, infos):
            last = f"model.layers.{config.num_layers}."
            places = {name: place for name, place in places.items() if not name.startswith(last)} | {
                name: places[place] for name, place in in_head.items()
            }
    config = replace(config, mtp_layers=int("mtp.fc.weight" in places and family.has_draft_head))
    parts, expected = find_parts(
        config,
        family.names_in(places),
        interleaved=family.interleaved,
        norm_offset=family.norm_offset,
        paired_experts=family.paired_experts,
    )
    unread = unread_tensors(expected, places)
    check_shapes(config, expected, {name: source.infos[place].shape for name, place in places.items()}, where)
    _warn(where, "tensors", unread)
    if renamed is None:
        _warn(folder, "keys of config.json", unread_keys(read_json_object(folder / "config.json"), family))
    stored = source.stored(places, codes_among(expected) if family.paired_experts else ())
    if config.tie_embeddings and not _is_embedding(stored):
        config = replace(config, tie_embeddings=False)
    return Checkpoint(config, stored_parts(parts, stored))


def _text_names(folder: Path, names: Collection[str]) -> dict[str, str] | None:
    """Names in the file of the text tensors of a model of text and images, by the text family's; None: a text model."""
    if is_vision_language(folder):
        found: dict[str, str] = family_extension("vision_language", folder).text_names(folder, names)
        return found
    if read_json_object(folder / "config.json").get("model_type") not in TEXT_PARTS:
        return None
    if unseen := vision_tensors(names):
        logger.warning("%s: its vision part (%d tensors) is not loaded: the model reads text only", folder, unseen)
    return text_tensors(names)


def _names_without_prefix(names: Iterable[str]) -> dict[str, str] | None:
    """Names in the file by names with ``model.`` before them, for a model saved without its LM head; else None."""
    plain = [name for name in names if name != "lm_head.weight"]
    return None if "embed_tokens.weight" not in plain else {f"model.{name}": name for name in plain}


def _warn(folder: Path, kind: str, names: Sequence[str]) -> None:
    if names:
        logger.warning("%s: %s without effect, as in transformers: %s", folder, kind, shown(", ".join(names)))


def open_stored(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder's safetensors files, by their names in the files."""
    source = FileTensors(weight_files(folder))
    return source.stored({name: name for name in source.infos})


def _is_embedding(stored: Mapping[str, StoredTensor]) -> bool:
    """Whether the LM head is the embedding. As in transformers, another head in the file overrules the config."""
    head, embedding = stored.get("lm_head.weight"), stored["model.embed_tokens.weight"]
    return head is None or (head.type == embedding.type and np.array_equal(head.data, embedding.data))


def has_weights(folder: Path) -> bool:
    """Whether ``folder`` holds weights that ``open_checkpoint`` can read."""
    return any(folder.glob("*.safetensors")) or gguf_weights(folder) is not None


def gguf_weights(folder: Path) -> Path | None:
    """``model.gguf``, or one of its parts, ``model-00001-of-00003.gguf`` and so on; None if there is none."""
    parts = (path for path in sorted(folder.glob("model-*.gguf")) if is_shard(path.name))
    return folder / GGUF_WEIGHTS if (folder / GGUF_WEIGHTS).exists() else next(parts, None)


def has_safetensors(folder: Path) -> bool:
    """Whether ``folder`` holds weights in safetensors files."""
    return (folder / "model.safetensors").exists() or (folder / "model.safetensors.index.json").exists()


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of ``folder``. Raises ``ModelFormatError`` if it has none, or a damaged index."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        refuse_pickles(folder)
        raise ModelFormatError(f"{folder} has no model.safetensors, model.safetensors.index.json or {GGUF_WEIGHTS}")
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFormatError(f"{index} has no weight_map: download the model again")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard or Path(shard).suffix != ".safetensors":
            raise ModelFormatError(f"{index} maps {shown(name)} to {shown(shard)}, which is no .safetensors file here")
    return [folder / shard for shard in sorted(set(weight_map.values()))]


def refuse_pickles(folder: Path) -> None:
    """Raise ``ModelFormatError`` if the weights in ``folder`` are pickles, which can run code when read."""
    for path in sorted(folder.iterdir()):
        if path.suffix in PICKLE_SUFFIXES and path.is_file():
            raise ModelFormatError(
                f"{path} is a pickle, which can run code when read: convert the model to safetensors "
                "(transformers: model.save_pretrained(folder))"
            )
