"""A head's folder: ``config.json`` and ``model.safetensors``. No pickles: reading runs no code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from outrider.drafters.heads.checkpoint import CONFIG, WEIGHTS, read_head
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.drafters.heads.weights import HeadWeights
from outrider.errors import ConfigError
from outrider.utils import whole_files
from outrider.verify.arrays import host
from outrider.weights.hub.convert_tokenizer import write_json
from outrider_torch.heads.blockwise import BlockwiseHeads
from outrider_torch.heads.dflash import BlockHead
from outrider_torch.heads.diffusion import DiffusionHead
from outrider_torch.heads.dspark import DSparkHead
from outrider_torch.heads.eagle import EagleLayer
from outrider_torch.heads.medusa import MedusaHeads
from outrider_torch.heads.pass_ import LookaheadEmbeddings


def make_head(config: HeadConfig) -> nn.Module:
    """A fresh head of ``config.kind``."""
    kinds: dict[str, type[nn.Module]] = {
        "medusa": MedusaHeads,
        "blockwise": BlockwiseHeads,
        "pass": LookaheadEmbeddings,
        "eagle": EagleLayer,
        "eagle3": EagleLayer,
        "dflash": BlockHead,
        "diffusion": DiffusionHead,
        "dspark": DSparkHead,
    }
    return kinds[config.kind](config)


def save_head(folder: Path, head: nn.Module, config: HeadConfig) -> None:
    """Write weights in bfloat16 and the configuration; each file appears whole or not at all.

    Raises ``CapacityError`` if the disk is full, ``ConfigError`` if the folder cannot be written.
    """
    tensors = {
        name: value.detach().cpu().to(torch.bfloat16 if value.is_floating_point() else value.dtype).contiguous()
        for name, value in head.state_dict().items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror}") from None
    write_tensors(folder / WEIGHTS, tensors)
    write_whole(folder / CONFIG, lambda path: write_json(path, config.to_json()))


def load_head(
    folder: Path, dtype: torch.dtype = torch.float32, target: tuple[TargetFingerprint, Tensor] | None = None
) -> tuple[nn.Module, HeadConfig]:
    """The head in ``folder``, its floats in ``dtype``, in evaluation mode.

    Raises ``ModelFormatError`` naming the file and the tensor at fault. ``HeadConfig.check_target`` checks that the
    head fits a loaded target.

    Args:
        target: a published head's target, and rows ``fingerprint_rows`` of its embedding, float [n, d].
    """
    known = None if target is None else (target[0], host(target[1]))
    read = read_head(folder, known, _shapes)
    with torch.device("meta"):
        head = make_head(read.config)
    state = {
        name: tensor.to(dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in ((name, torch.from_numpy(array)) for name, array in read.tensors.items())
    }
    head.load_state_dict(state, assign=True)
    return head.eval().requires_grad_(False), read.config


def head_weights(head: EagleLayer) -> HeadWeights:
    """A head's weights for the native library."""
    return HeadWeights(head.config, {name: _array(value) for name, value in head.state_dict().items()})


def _array(value: Tensor) -> NDArray[Any]:
    value = value.detach().cpu()
    found: NDArray[Any] = (value.float() if value.is_floating_point() else value).numpy().copy()
    return found


def _shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in make_head(config).state_dict().items()}


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file atomically. Errors as for ``save_head``."""
    write_whole(path, lambda fresh: save_file(tensors, fresh, metadata={"format": "pt"}))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """``utils.whole_files``, with errors that say how to resume a training."""
    whole_files.write_whole(path, write, "free some space, then go on with --resume")
