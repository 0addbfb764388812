"""A head's folder: ``config.json`` and ``model.safetensors``. No pickles, nothing that runs when read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.diffusion import DiffusionHead
from outrider.drafters.heads.eagle import EagleLayer
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.drafters.heads.published import is_published, read_config, rename
from outrider.drafters.heads.vocabulary import ScoringHead
from outrider.errors import ConfigError, ModelFormatError
from outrider.hub.convert_tokenizer import write_json
from outrider.utils import whole_files
from outrider.utils.json_files import read_json_object, shown
from outrider.weights.files.safetensors import read_header
from outrider_torch.heads.blockwise import BlockwiseHeads
from outrider_torch.heads.dflash import BlockHead
from outrider_torch.heads.medusa import MedusaHeads
from outrider_torch.heads.pass_ import LookaheadEmbeddings

WEIGHTS, CONFIG = "model.safetensors", "config.json"
Target = tuple[TargetFingerprint, Tensor]
"""A loaded target, and rows ``fingerprint_rows`` of its embedding, float [n, d]."""


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
    folder: Path, dtype: torch.dtype = torch.float32, target: Target | None = None
) -> tuple[nn.Module, HeadConfig]:
    """The head in ``folder``, its floats in ``dtype``, in evaluation mode.

    Raises ``ModelFormatError`` naming the file and the tensor at fault. Whether the head fits a loaded target is
    for ``HeadConfig.check_target`` to say.

    Args:
        target: what a published head is to draft for, as its own files do not say that; ours need none.
    """
    path = folder / WEIGHTS
    try:
        raw = read_json_object(folder / CONFIG)
        published = is_published(raw)
        if published and target is None:
            raise ModelFormatError("this is a published head, which can draft as it is, but not be trained further")
        config = read_config(raw, target[0]) if published and target else HeadConfig.from_json(raw)
    except ModelFormatError as error:
        raise ModelFormatError(f"{folder / CONFIG}: {error}") from None
    if not path.is_file():
        raise ModelFormatError(f"{folder} has no {WEIGHTS}: train the head again")
    found = read_header(path)
    with torch.device("meta"):  # shapes first: a lying configuration must not cost memory
        head = make_head(config)
    if published and target:
        try:
            tensors = rename(_read(path, dtype), config, target[1])
        except ModelFormatError as error:
            raise ModelFormatError(f"{path}: {error}") from None
        shapes = {name: (tuple(value.shape), not value.is_floating_point()) for name, value in tensors.items()}
    else:
        shapes = {name: (tensor.shape, tensor.dtype == "I64") for name, tensor in found.items()}
    _check_tensors(path, shapes, head.state_dict(), config)
    head.load_state_dict(tensors if published else _read(path, dtype), assign=True)
    if isinstance(head, ScoringHead) and head.draft_ids is not None:
        try:
            head.set_draft_ids(head.draft_ids)
        except ModelFormatError as error:
            raise ModelFormatError(f"{path}: {error}") from None
    return head.eval().requires_grad_(False), config


def _check_tensors(
    path: Path, found: Mapping[str, tuple[tuple[int, ...], bool]], expected: Mapping[str, Tensor], config: HeadConfig
) -> None:
    """``found``: shapes, and whether they are integers."""
    for name, value in expected.items():
        if name not in found:
            raise ModelFormatError(f"{path}: tensor {name} is missing (expected shape {list(value.shape)})")
        shape, integers = found[name]
        if shape != tuple(value.shape):
            raise ModelFormatError(
                f"{path}: tensor {name} has shape {list(shape)}, but the configuration says {list(value.shape)}"
            )
        if integers != (value.dtype == torch.int64):
            raise ModelFormatError(f"{path}: tensor {name} has another dtype than the configuration says")
    for name in found:
        if name not in expected:
            raise ModelFormatError(f"{path}: tensor {shown(name)} belongs to no {config.kind} head")


def _read(path: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise ModelFormatError(f"{path} cannot be read ({shown(str(error))}): train the head again") from None
    # Copies first: the file is mapped, and may change after it was checked.
    own = {name: value.to(dtype if value.is_floating_point() else value.dtype, copy=True)
           for name, value in tensors.items()}  # fmt: skip
    for name, value in own.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ModelFormatError(f"{path}: tensor {name} holds values that are not numbers: train the head again")
    return own


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file that appears whole or not at all. Errors as for ``save_head``."""
    write_whole(path, lambda fresh: save_file(tensors, fresh, metadata={"format": "pt"}))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """As ``utils.whole_files`` has it, of a training, which goes on where it was."""
    whole_files.write_whole(path, write, "free some space, then go on with --resume")
