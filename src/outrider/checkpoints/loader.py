"""Loads a model folder: configuration and weights in, a ``LlamaModel`` on its device and in its dtype out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from outrider.checkpoints.weights import open_checkpoint
from outrider.config import ModelOptions
from outrider.errors import ConfigError
from outrider.kernels.processor import has_bf16_instructions
from outrider.models.llama import LlamaModel


def load_model(folder: Path, options: ModelOptions) -> LlamaModel:
    """Load the model in ``folder`` (of Hugging Face layout; ``catalog.resolve`` finds or makes one).

    Raises:
        ModelFormatError: the files are damaged, unsafe or of an unsupported kind.
        ConfigError: the device is not there.
    """
    device = choose_device(options.device)
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    if options.max_seq_len is not None:
        if options.max_seq_len > config.max_seq_len:
            raise ConfigError(
                f"max_seq_len={options.max_seq_len} is more than the {config.max_seq_len} positions {folder.name} was "
                "made for: use at most that"
            )
        config = replace(config, max_seq_len=options.max_seq_len)
    if options.dtype == "int8" and device.type != "cpu":
        raise ConfigError(f"dtype='int8' runs on the CPU only, not on {device}: use bfloat16")
    dtype = choose_dtype(options.dtype, device)
    return LlamaModel(
        config,
        checkpoint.tensors,
        dtype=dtype,
        int8=options.dtype == "int8",
        device=device,
        fixed_shapes=device.type == "cuda" and options.cuda_graphs,
    )


def choose_device(name: str) -> torch.device:
    """``auto`` is a CUDA device if there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device={name!r} is unknown: use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name!r} is not there: torch sees no CUDA device, use cpu")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r} is not supported: use cpu or cuda")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of activations and cache: bfloat16 where the device multiplies it, unless told otherwise."""
    if name in ("auto", "int8"):
        fast = device.type == "cuda" or has_bf16_instructions()
        return torch.bfloat16 if fast else torch.float32
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[name]
