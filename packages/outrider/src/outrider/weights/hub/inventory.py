"""Lists the models on this machine, and describes one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from outrider.errors import OutriderError
from outrider.native.stored import StoredTensor
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.utils.user_cache import cache_root
from outrider.weights.families.elsewhere import family_extension, other_family
from outrider.weights.files.safetensors import read_header
from outrider.weights.folder import gguf_weights, open_checkpoint
from outrider.weights.gguf.shards import gguf_files, read_gguf
from outrider.weights.hub.builtin import BUILTINS, BuiltIn, folder_of, is_pulled
from outrider.weights.hub.catalog import gguf_folder, real_place, resolve
from outrider.weights.hub.checksums import sha256_of
from outrider.weights.hub.manifest import MANIFEST, check_files, read_source
from outrider.weights.hub.stores.find import find_models
from outrider.weights.hub.stores.found import FoundModel, Store
from outrider.weights.packed import packed_models, packed_size


@dataclass(frozen=True)
class ModelEntry:
    """One line of ``outrider models list``. Every option for a model takes ``name``."""

    name: str
    kind: Literal["built-in", "gguf", "folder"] | Store
    parameters: int | None
    bytes: int | None  # on disk; for a model not pulled yet, to download
    licence: str | None
    pulled: bool
    folder: Path | None
    packed_bytes: int = 0
    """On disk, of weights packed for the native library."""
    file: Path | None = None
    """The GGUF file of a model that is read in place."""
    type: str | None = None
    """Of the weights, as the file's name or its store tells it."""
    problem: str | None = None
    """Why the model cannot be used."""


def list_models() -> list[ModelEntry]:
    """The built-in models, those of other programs' stores, GGUF files used before, and folders with packed weights.

    What is damaged has a ``problem``.
    """
    found = [_found(model) for model in find_models()]
    files = {str(entry.file) for entry in found}
    entries = [*map(_built_in, BUILTINS.values()), *(each for each in _converted() if each.name not in files), *found]
    known = {entry.folder.resolve() for entry in entries if entry.folder is not None}
    entries += [
        ModelEntry(str(folder), "folder", _parameters_of(folder), None, None, True, folder)
        for folder in packed_models()
        if folder not in known
    ]
    return [replace(each, packed_bytes=packed_size(each.folder)) if each.folder else each for each in entries]


def describe(ref: str, *, verify: bool = False) -> dict[str, Any]:
    """Everything ``outrider models info`` shows. A built-in model is not pulled for it.

    ``verify`` compares every byte of a converted model with its manifest; the entry ``verified`` names the
    comparison, and ``sha256`` is that of each GGUF file.

    Raises as ``resolve``, and ``ModelFormatError`` naming the file that differs.
    """
    known = BUILTINS.get(ref)
    facts = _catalogued(known) if known is not None else {"name": ref, "about": None, "licence": None, "sha256": None}
    if known is not None and not Path(ref).is_dir() and not is_pulled(known):
        return facts | {"pulled": False}
    folder = resolve(ref)
    source = read_source(folder) or {}
    facts |= {key: source[key] for key in ("licence", "sha256") if key in source}
    tokenizer = Tokenizer.from_folder(folder)
    if other_family(folder) == "transformers":
        config = family_extension("transformers", folder).foreign_config(folder)
        parameters, dtypes = _of_headers(folder)
    else:
        checkpoint = open_checkpoint(folder)
        config, stored = checkpoint.config, checkpoint.stored.values()
        parameters, dtypes = sum(map(_numbers, stored)), {tensor.type for tensor in stored}
    facts |= {
        "pulled": True,
        "family": config.family,
        "parameters": parameters,
        "dtype": ", ".join(sorted(dtypes)),
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "context": config.max_seq_len,
        "vocabulary": tokenizer.vocab_size,
        "eos_token_ids": list(tokenizer.eos_token_ids),
        "chat_template": tokenizer.chat_template is not None,
        "folder": str(folder),
    }
    if verify:
        has_manifest = (folder / MANIFEST).exists()
        count = check_files(folder, full=True) if has_manifest else 0
        facts["verified"] = f"every byte of {count} files" if has_manifest else "headers and shapes (no manifest)"
        if facts["sha256"] is None and (gguf := gguf_weights(folder)) is not None:
            facts["sha256"] = " ".join(map(sha256_of, gguf_files(gguf)))
    return facts


def _numbers(tensor: StoredTensor) -> int:
    """The numbers of a tensor, which may have some rows of its file's alone."""
    rows = tensor.shape[0] if tensor.order is None else len(tensor.order)
    return rows * math.prod(tensor.shape[1:])


def _of_headers(folder: Path) -> tuple[int, set[str]]:
    """Parameters and dtypes of safetensors files."""
    infos = [info for path in folder.glob("*.safetensors") for info in read_header(path).values()]
    return sum(math.prod(info.shape) for info in infos), {info.dtype for info in infos}


def _catalogued(model: BuiltIn) -> dict[str, Any]:
    return {
        "name": model.name,
        "about": model.about,
        "licence": model.licence,
        "sha256": model.sha256,
        "parameters": model.parameters,
        "download_bytes": model.download_bytes,
    }


def _built_in(model: BuiltIn) -> ModelEntry:
    folder, pulled = folder_of(model), is_pulled(model)
    size = _size_of(folder) if pulled else model.download_bytes
    return ModelEntry(model.name, "built-in", model.parameters, size, model.licence, pulled, folder if pulled else None)


def _converted() -> list[ModelEntry]:
    entries = []
    for folder in sorted((cache_root() / "gguf").glob("[!.]*")):
        source = read_source(folder)
        if source is not None:
            name = str(source.get("path"))
            size, file = _size_of(folder), Path(name)
            entries.append(ModelEntry(name, "gguf", _parameters_of(folder), size, None, True, folder, file=file))
    return entries


def _found(model: FoundModel) -> ModelEntry:
    """The entry of a model in a store, with the folder that was made of it, if it was used before."""
    if model.file is None:
        folder = None if model.problem else Path(model.aliases[0])
        parameters = None if folder is None else _parameters_of(folder)
        return ModelEntry(model.name, model.store, parameters, model.bytes, None, True, folder, problem=model.problem)
    file = real_place(model.file)
    folder = gguf_folder(file)
    made = folder if folder.is_dir() else None
    return ModelEntry(
        model.name, model.store, None, model.bytes, None, True, made, file=file, type=model.type, problem=model.problem
    )


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _parameters_of(folder: Path) -> int | None:
    try:
        shapes = [i.shape for path in folder.glob("*.safetensors") for i in read_header(path).values()]
        gguf = gguf_weights(folder)
        if not shapes and gguf is not None:
            shapes = [i.shape for i in read_gguf(gguf).tensors.values()]
    except (OutriderError, OSError):
        return None  # `outrider models info` reports damaged files; the list goes on
    return sum(map(math.prod, shapes))
