"""Loads a model folder: configuration and weights in, a model on its device and in its dtype out."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from outrider.config import ModelOptions
from outrider.errors import CapacityError, ConfigError
from outrider.extensions import extension, has_extension
from outrider.models.base import LoadedModel
from outrider.models.config import ModelConfig
from outrider.models.factory import make_model
from outrider.models.shard import Shard
from outrider.weights.families.elsewhere import family_extension, other_family
from outrider.weights.folder import open_checkpoint
from outrider.weights.packed import packed_place

C = TypeVar("C", bound=ModelConfig)

_MOST_ROTATIONS = 1 << 30  # bytes of rotary tables: 2 million positions of heads of 128 dimensions


def load_model(
    folder: Path, options: ModelOptions, *, shard: Shard | None = None, progress: bool = False
) -> LoadedModel:
    """Load the model in ``folder`` (of Hugging Face layout; ``catalog.resolve`` finds or makes one).

    Args:
        shard: the part of the weights that this process computes; None: all of them.
        progress: whether long work is shown on a terminal.

    Raises:
        ModelFormatError: the files are damaged, unsafe or of an unsupported kind.
        ConfigError: the device does not exist, or the implementation cannot run this model.
        CapacityError: the context is too long for memory.
    """
    device = choose_device(options.device)
    other = other_family(folder)
    if options.implementation == "transformers":
        if other == "encoder_decoder":
            raise ConfigError(f"implementation='transformers': {folder.name} has an encoder, use auto")
        if other == "vision_language":
            raise ConfigError(
                f"implementation='transformers': {folder.name} sees images, its text part is ours: use auto"
            )
        other = "transformers"
    if other == "encoder_decoder" or (other == "transformers" and options.implementation in ("auto", "transformers")):
        loaded: LoadedModel = family_extension(other, folder).load(folder, options, device)
        return loaded
    checkpoint = open_checkpoint(folder)
    config = with_context(checkpoint.config, options, folder)
    table = 4 * config.max_seq_len * config.rope_dim
    if table > _MOST_ROTATIONS:
        raise CapacityError(
            f"{folder.name} claims a context of {config.max_seq_len:,} positions, whose rotary tables alone take "
            f"{table / 1e9:.1f} GB: set max_seq_len to what you need"
        )
    graphs = device != "cpu" and options.cuda_graphs
    return make_model(
        config,
        checkpoint.stored,
        quantised=checkpoint.quantised,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        device=device,
        fixed_shapes=graphs,
        shard=shard,
        implementation=options.implementation,
        place=packed_place(folder, options.dtype, shard, progress=progress),
    )


def with_context(config: C, options: ModelOptions, folder: Path) -> C:
    """``config`` with the context that the options ask for. Raises ``ConfigError`` if the model has less."""
    if options.max_seq_len is None:
        return config
    if options.max_seq_len > config.max_seq_len:
        raise ConfigError(
            f"max_seq_len={options.max_seq_len} is more than the {config.max_seq_len} positions {folder.name} was "
            "made for: use at most that"
        )
    return replace(config, max_seq_len=options.max_seq_len)


def choose_device(name: str) -> str:
    """``auto`` is a CUDA device if there is one and a backend for it, else the CPU.

    Raises ``ConfigError`` if the device or its backend is missing.
    """
    usable = _may_have_cuda() and has_extension("backends", "torch")
    if name == "cpu" or (name == "auto" and not usable):
        return "cpu"
    return str(extension("backends", "torch", f"device={name!r}").choose_device(name))


def _may_have_cuda() -> bool:
    """Whether this machine has NVIDIA's driver, which every CUDA device needs."""
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg") or sys.platform == "win32"
