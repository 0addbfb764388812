"""Converts other model files to folders of Hugging Face layout.

A GGUF file keeps its weights as they are. The weights of a llama2.c file become bfloat16 in a safetensors file.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from outrider.utils.progress import progress_bar
from outrider.utils.user_cache import require_space
from outrider.verify.arrays import bfloat16
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.files.layout import expected_shapes
from outrider.weights.files.safetensors import write_bfloat16
from outrider.weights.folder import GGUF_WEIGHTS
from outrider.weights.hf_config.config import to_hf_config
from outrider.weights.hub.convert_tokenizer import tokenizer_from_gguf, tokenizer_from_llama2c, write_json

_SMALL_FILES = 32_000_000  # bytes of the tokenizer's files, at most
_BLOCK = 1 << 24  # bytes copied at a time


def convert_gguf(gguf: Path, out: Path, *, progress: bool = False, copy: bool = True) -> None:
    """Fill ``out`` from a GGUF file: the file itself (a hard link where possible), configuration, tokenizer, template.

    All parts of a model that is split are linked, and the file of a draft head beside them. Where no hard link can be
    made, they are copied, or, without ``copy``, become symbolic links.

    Raises ``ModelFormatError`` for files that cannot be read, ``CapacityError`` if the disk has no room.
    """
    from outrider.weights.gguf.draft_head import find_draft_head
    from outrider.weights.gguf.reader import open_gguf
    from outrider.weights.gguf.shards import gguf_files, read_gguf, shard_name

    header = read_gguf(gguf)
    checkpoint = open_gguf(gguf, header=header)
    files = gguf_files(gguf)
    for place, file in enumerate(files):
        name = shard_name(Path(GGUF_WEIGHTS).stem, place, len(files))
        _link_or_copy(file, out / name, progress=progress, copy=copy)
    if (head := find_draft_head(files[0])) is not None:
        _link_or_copy(head, out / f"mtp-{GGUF_WEIGHTS}", progress=progress, copy=copy)
    write_json(out / "config.json", to_hf_config(checkpoint.config))
    tokenizer_from_gguf(gguf, header, out)


def _link_or_copy(source: Path, target: Path, *, progress: bool, copy: bool) -> None:
    size = source.stat().st_size
    require_space(bytes_needed(0), source.name)
    try:
        os.link(source.resolve(), target)  # the hub's cache has a link of its own there
    except OSError:  # another disk, one without links, or a file of another user
        if not copy:
            target.symlink_to(source.resolve())
            return
        require_space(size + bytes_needed(0), source.name)
        with (
            source.open("rb") as file,
            target.open("wb") as written,
            progress_bar(f"copying {source.name}", size, show=progress) as advance,
        ):
            while block := file.read(_BLOCK):
                written.write(block)
                advance(len(block))


def convert_llama2c(model: Path, vocabulary: Path, out: Path, *, progress: bool = False) -> None:
    """Fill ``out`` from a llama2.c model and its ``tokenizer.bin``. Errors as for ``convert_gguf``."""
    from outrider.weights.files.llama2c import open_llama2c, read_vocabulary

    checkpoint = open_llama2c(model)
    tokens = read_vocabulary(vocabulary, checkpoint.config.vocab_size)
    _write_model(checkpoint, model.name, out, progress=progress)
    tokenizer_from_llama2c(tokens, checkpoint.config.max_seq_len, out)


def bytes_needed(parameters: int) -> int:
    """Upper bound of the disk space of a folder with ``parameters`` numbers converted to bfloat16."""
    return 2 * parameters + _SMALL_FILES


def _write_model(checkpoint: Checkpoint, name: str, out: Path, *, progress: bool) -> None:
    shapes = expected_shapes(checkpoint.config)
    parameters = sum(map(math.prod, shapes.values()))
    require_space(bytes_needed(parameters), name)
    with (
        (out / "model.safetensors").open("wb") as file,
        progress_bar(f"converting {name}", 2 * parameters, show=progress) as advance,
    ):
        write_bfloat16(
            file, shapes, ((tensor, bfloat16(checkpoint.stored[tensor].numbers())) for tensor in shapes), advance
        )
    write_json(out / "config.json", to_hf_config(checkpoint.config))
