"""Loads a model folder: configuration and weights in, a model on its device and in its dtype out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from outrider.config import ModelOptions
from outrider.errors import CapacityError, ConfigError
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.models.shard import Shard
from outrider.weights.files import open_checkpoint
from outrider_multimodal.vision_language import is_vision_language
from outrider_multimodal.weights import is_encoder_decoder, open_encoder_decoder
from outrider_transformers.foreign import is_foreign, load_foreign, with_context

_MOST_ROTATIONS = 1 << 30  # bytes: 2 million positions of heads of 128 dimensions


def load_model(folder: Path, options: ModelOptions, *, shard: Shard | None = None) -> LoadedModel:
    """Load the model in ``folder`` (of Hugging Face layout; ``catalog.resolve`` finds or makes one), or a share of it.

    Raises:
        ModelFormatError: the files are damaged, unsafe or of an unsupported kind.
        ConfigError: the device is not there.
        CapacityError: the context is too long for memory.
    """
    device = choose_device(options.device)
    if is_encoder_decoder(folder):
        if options.implementation == "transformers":
            raise ConfigError(f"implementation='transformers': {folder.name} has an encoder, use auto")
        from outrider_torch.models.factory import make_encoder_decoder

        own, tensors = open_encoder_decoder(folder)
        own = with_context(own, options, folder)
        return make_encoder_decoder(
            own, tensors, dtype=options.dtype, kv_cache_dtype=options.kv_cache_dtype, device=device
        )
    if options.implementation == "transformers" and is_vision_language(folder):
        raise ConfigError(f"implementation='transformers': {folder.name} sees images, its text part is ours: use auto")
    if options.implementation == "transformers" or (options.implementation == "auto" and is_foreign(folder)):
        return load_foreign(folder, options, device)
    checkpoint = open_checkpoint(folder)
    config = with_context(checkpoint.config, options, folder)
    table = 4 * config.max_seq_len * config.head_dim
    if table > _MOST_ROTATIONS:
        raise CapacityError(
            f"{folder.name} claims a context of {config.max_seq_len:,} positions, whose rotary tables alone take "
            f"{table / 1e9:.1f} GB: set max_seq_len to what you need"
        )
    graphs = device != "cpu" and options.cuda_graphs
    return make_model(
        config,
        lambda: checkpoint.tensors,
        stored=checkpoint.stored,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        device=device,
        fixed_shapes=graphs,
        shard=shard,
        implementation=options.implementation,
    )


def choose_device(name: str) -> str:
    """``auto`` is a CUDA device if there is one, else the CPU. torch is asked only where there may be one."""
    if name == "cpu" or (name == "auto" and not _may_have_cuda()):
        return "cpu"
    try:
        import torch
    except ImportError:
        if name == "auto":
            return "cpu"
        raise ConfigError(
            f"device={name!r} needs torch, which is not installed: pip install torch, or use cpu"
        ) from None
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name!r} is unknown: use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r} is not there: torch sees no CUDA device, use cpu")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r} is not supported: use cpu or cuda")
    return str(device)


def _may_have_cuda() -> bool:
    """Whether this machine has a driver of NVIDIA's, which every CUDA device needs."""
    return os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg") or sys.platform == "win32"
