"""Weights that a program hands over: a safetensors file or folder, or tensors by the names that they have in one."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelFormatError, ModelNotFoundError
from outrider.native.stored import StoredTensor
from outrider.utils.json_files import shown
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.files.safetensors import TensorInfo, check_dtypes
from outrider.weights.folder import FileTensors, read_checkpoint, weight_files
from outrider.weights.hf_config.config import read_config

__all__ = ["Weights", "open_given", "tensors_digest"]

Weights = str | PathLike[str] | Mapping[str, Any] | Iterable[tuple[str, Any]]
"""A safetensors file, or a folder of them; or NumPy arrays or torch tensors by name, or pairs of name and tensor."""

_GIVEN = Path("the new weights")
_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8"}
"""Names of dtypes of torch, and of NumPy with ml_dtypes, by which safetensors files have them."""


class GivenTensors:
    """Tensors in memory, as a ``TensorSource``; shares their memory."""

    def __init__(self, tensors: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        self._stored = {name: _stored(name, tensor) for name, tensor in dict(tensors).items()}
        self.files: dict[str, Path] = {}
        self.infos = {name: TensorInfo(each.type, each.shape, 0, 0) for name, each in self._stored.items()}

    def stored(self, places: Mapping[str, str], codes: Collection[str] = ()) -> dict[str, StoredTensor]:
        check_dtypes({name: (_GIVEN, self.infos[place]) for name, place in places.items()}, codes)
        return {name: self._stored[place] for name, place in places.items()}


def open_given(weights: Weights, folder: Path) -> Checkpoint:
    """New weights for the model in ``folder``, whose configuration they share.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFormatError: a tensor is missing, or of another shape or type, or the files are of another model.
    """
    if isinstance(weights, str | PathLike):
        place = Path(fspath(weights)).expanduser()
        if not place.exists():
            raise ModelNotFoundError(f"there is no {shown(str(place))}: name a .safetensors file, or a folder of them")
        _check_same_model(place, folder)
        files = weight_files(place) if place.is_dir() else [place]
        return read_checkpoint(folder, FileTensors(files), place)
    return read_checkpoint(folder, GivenTensors(weights), _GIVEN)


def _check_same_model(place: Path, folder: Path) -> None:
    if not (place / "config.json").is_file():
        return
    own, other = read_config(folder), read_config(place)
    if own != other:
        names = [name for name in vars(own) if getattr(own, name) != getattr(other, name, None)]
        raise ModelFormatError(f"{place} is another model ({shown(', '.join(names))}): load it as one")


def tensors_digest(checkpoint: Checkpoint) -> str:
    """A hash of all tensors, the same whether they come from files or from memory: 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for name, stored in sorted(checkpoint.stored.items()):
        about = (name, stored.type, stored.shape, stored.transposed, stored.swapped, stored.plus)
        digest.update(repr(about).encode())
        digest.update(np.ascontiguousarray(stored.data).data)
        if stored.order is not None:
            digest.update(np.ascontiguousarray(stored.order).data)
    return digest.hexdigest()


def _stored(name: str, tensor: Any) -> StoredTensor:
    dtype = str(tensor.dtype).removeprefix("torch.") if hasattr(tensor, "dtype") else type(tensor).__name__
    kind = _NAMES.get(dtype, dtype)
    if kind not in _NAMES.values():
        raise ModelFormatError(f"{_GIVEN}: tensor {shown(str(name))} has dtype {shown(dtype)}: use bfloat16 or float32")
    return StoredTensor(kind, tuple(tensor.shape), _bytes(tensor))


def _bytes(tensor: Any) -> NDArray[np.uint8]:
    """The numbers of an array, or of a tensor of torch on any device, one byte each."""
    if not isinstance(tensor, np.ndarray):
        torch = sys.modules["torch"]  # the core does not import it
        tensor = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    array: NDArray[np.uint8] = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    return array
