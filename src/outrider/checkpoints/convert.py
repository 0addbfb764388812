"""Model files of other kinds to a folder of Hugging Face layout: weights in bfloat16, ready to be mapped."""

from __future__ import annotations

import math
from pathlib import Path

from outrider.checkpoints.convert_tokenizer import tokenizer_from_gguf, tokenizer_from_llama2c, write_json
from outrider.checkpoints.hf_config import to_hf_config
from outrider.checkpoints.weights import Checkpoint
from outrider.checkpoints.weights.layout import expected_shapes
from outrider.checkpoints.weights.safetensors import write_bfloat16
from outrider.utils.progress import progress_bar
from outrider.utils.user_cache import require_space

_SMALL_FILES = 32_000_000  # the tokenizer's, at most


def convert_gguf(gguf: Path, out: Path, *, progress: bool = False) -> None:
    """Fill ``out`` from a GGUF file: weights, configuration, tokenizer and chat template.

    Raises ``ModelFormatError`` for files that cannot be read, ``CapacityError`` if the disk has no room.
    """
    from outrider.checkpoints.weights.gguf import open_gguf
    from outrider.checkpoints.weights.gguf_header import read_gguf_header

    _write_model(open_gguf(gguf), gguf.name, out, progress=progress)
    tokenizer_from_gguf(gguf, read_gguf_header(gguf).scalar("tokenizer.ggml.pre"), out)


def convert_llama2c(model: Path, vocabulary: Path, out: Path, *, progress: bool = False) -> None:
    """Fill ``out`` from a llama2.c model and its ``tokenizer.bin``. Errors as for ``convert_gguf``."""
    from outrider.checkpoints.weights.llama2c import open_llama2c, read_vocabulary

    checkpoint = open_llama2c(model)
    tokens = read_vocabulary(vocabulary, checkpoint.config.vocab_size)
    _write_model(checkpoint, model.name, out, progress=progress)
    tokenizer_from_llama2c(tokens, checkpoint.config.max_seq_len, out)


def bytes_needed(parameters: int) -> int:
    """Disk space a converted model of so many parameters takes at most."""
    return 2 * parameters + _SMALL_FILES


def _write_model(checkpoint: Checkpoint, name: str, out: Path, *, progress: bool) -> None:
    shapes = expected_shapes(checkpoint.config)
    parameters = sum(map(math.prod, shapes.values()))
    require_space(bytes_needed(parameters), name)
    with (
        (out / "model.safetensors").open("wb") as file,
        progress_bar(f"converting {name}", 2 * parameters, show=progress) as advance,
    ):
        write_bfloat16(file, shapes, ((tensor, checkpoint.tensors[tensor]) for tensor in shapes), advance)
    write_json(out / "config.json", to_hf_config(checkpoint.config))
