"""GGUF models in one file or in several, as llama.cpp's ``llama-gguf-split`` writes them.

    m-00001-of-00003.gguf   the metadata, and tensors       m-00002-of-00003.gguf ...   more tensors

Each file has its own number (``split.no``, from 0), the number of files (``split.count``) and the number of their
tensors together (``split.tensors.count``). The model's metadata is that of the first file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.gguf.header import GGUFHeader, GGUFTensor, read_gguf_header

__all__ = ["first_shard", "gguf_files", "is_shard", "read_gguf", "shard_name", "shard_pattern"]

_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.DOTALL)
_TOTAL = "split.tensors.count"


def shard_name(stem: str, place: int, count: int) -> str:
    """The name of file ``place``, from 0, of ``count`` files; a single file is ``STEM.gguf``."""
    return f"{stem}.gguf" if count == 1 else f"{stem}-{place + 1:05}-of-{count:05}.gguf"


def shard_pattern(name: str) -> str:
    """A pattern for the names of all files of the model to which a file of this name belongs."""
    return _NAME.sub(r"\1-?????-of-\3\4", name) if is_shard(name) else name


def is_shard(name: str) -> bool:
    """Whether a file of this name is one part of a split model."""
    return _count(name) > 1


def first_shard(path: Path) -> Path:
    """The first file of the model to which ``path`` belongs, by its name; ``path`` itself if it is the only one."""
    return path.with_name(_NAME.sub(r"\1-00001-of-\3\4", path.name)) if is_shard(path.name) else path


def gguf_files(path: Path) -> list[Path]:
    """All files of the model to which ``path`` belongs.

    Raises ``ModelFormatError`` naming the first file that is missing.
    """
    found, count = _NAME.fullmatch(path.name), _count(path.name)
    if found is None or count <= 1:
        return [path]
    files = [path.with_name(shard_name(found[1], place, count)) for place in range(count)]
    for place, file in enumerate(files):
        if not file.is_file():
            raise ModelFormatError(f"{file} is missing, part {place + 1} of {count}: put all parts into one folder")
    return files


def read_gguf(path: Path) -> GGUFHeader:
    """The metadata and the tensors of the model to which ``path`` belongs.

    Raises ``ModelFormatError`` for files that are damaged, missing or of another model.
    """
    files = gguf_files(path)
    headers = [read_gguf_header(file) for file in files]
    if len(files) == 1:
        _check_whole(path, headers[0])
        return headers[0]
    tensors: dict[str, GGUFTensor] = {}
    for place, (file, header) in enumerate(zip(files, headers, strict=True)):
        _check_shard(file, header, place, len(files))
        _check_same_total(files[0], headers[0], file, header)
        for name in sorted(header.tensors.keys() & tensors.keys()):
            raise ModelFormatError(
                f"tensor {shown(name)} is in both {tensors[name].file} and {file}, which are no parts of one model: "
                "download them again"
            )
        tensors |= header.tensors
    wanted = headers[0].scalar(_TOTAL)
    if wanted not in (None, len(tensors)):
        raise ModelFormatError(
            f"{files[0]}: {_TOTAL}={shown(wanted)}, but the {len(files)} parts hold {len(tensors)}: download them again"
        )
    return replace(headers[0], tensors=tensors)


def _count(name: str) -> int:
    """The number of files by the name of one."""
    found = _NAME.fullmatch(name)
    return 1 if found is None or not 1 <= int(found[2]) <= int(found[3]) else int(found[3])


def _check_whole(path: Path, header: GGUFHeader) -> None:
    count = header.scalar("split.count", 0)
    if count not in (0, 1):
        name = shard_name("NAME", 0, count) if isinstance(count, int) else "NAME-00001-of-0000N.gguf"
        raise ModelFormatError(
            f"{path}: split.count={shown(count)}: this is one part of a model, and parts are found by names such as "
            f"{name}: give it its name back"
        )


def _check_shard(file: Path, header: GGUFHeader, place: int, count: int) -> None:
    said: tuple[Any, Any] = header.scalar("split.no"), header.scalar("split.count")
    if said != (place, count):
        raise ModelFormatError(
            f"{file} is part {place + 1} of {count} by its name, but holds split.no={shown(said[0])} and "
            f"split.count={shown(said[1])}, not {place} and {count}: download this part again"
        )


def _check_same_total(first: Path, first_header: GGUFHeader, file: Path, header: GGUFHeader) -> None:
    ours, wanted = header.scalar(_TOTAL), first_header.scalar(_TOTAL)
    if ours != wanted:
        raise ModelFormatError(
            f"{file} has {_TOTAL}={shown(ours)}, but {first.name} {shown(wanted)}: it is a part of another model"
        )
