"""A draft head in safetensors files whose layer stands behind the model's layers, as in DeepSeek V3 and GLM-4.5."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from outrider.weights.files.safetensors import TensorInfo

__all__ = ["head_names"]

logger = logging.getLogger(__name__)

_OWN = {
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "shared_head.norm": "mtp.norm",
}
_COPIES = {"embed_tokens": "model.embed_tokens", "shared_head.head": "lm_head"}
"""Tensors that a head shares with the model, of which files have another copy."""
_SAMPLES, _SAMPLE = 64, 4096


def head_names(layers: int, files: Mapping[str, Path], infos: Mapping[str, TensorInfo]) -> dict[str, str]:
    """The file's names of a head's tensors by canonical names; those of a head that cannot be used are left out.

    A head with an embedding of its own, or several heads, would draft otherwise than they were trained to.

    Args:
        layers: of the model.
        files, infos: by the file's names.
    """
    place = f"model.layers.{layers}."
    if f"{place}eh_proj.weight" not in infos:
        return {}
    if any(name.startswith(f"model.layers.{layers + 1}.") for name in infos):
        logger.warning(
            "%s: several draft heads are not supported, and not used", files[f"{place}eh_proj.weight"].parent
        )
        return {}
    for copy, own in _COPIES.items():
        names = f"{place}{copy}.weight", f"{own}.weight"
        if names[0] in infos and not (names[1] in infos and _alike(*((files[n], infos[n]) for n in names))):
            logger.warning("%s: a draft head with %s of its own is not used", files[names[0]].parent, copy)
            return {}
    return {_canonical(name.removeprefix(place)): name for name in _used(place, infos)}


def _used(place: str, names: Collection[str]) -> list[str]:
    copies = {f"{place}{copy}.weight" for copy in _COPIES}
    return [name for name in names if name.startswith(place) and name not in copies]


def _canonical(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    return f"{_OWN[stem]}.{kind}" if stem in _OWN else f"mtp.layers.0.{name}"


def _alike(one: tuple[Path, TensorInfo], other: tuple[Path, TensorInfo]) -> bool:
    """Whether two tensors are the same, by samples of their bytes: a wrong answer costs drafts, and no output."""
    if (one[1].dtype, one[1].shape) != (other[1].dtype, other[1].shape):
        return False
    size = one[1].stop - one[1].start
    maps = [np.memmap(path, mode="r", dtype=np.uint8)[info.start : info.stop] for path, info in (one, other)]
    starts = (size * i // _SAMPLES for i in range(_SAMPLES))
    return all(np.array_equal(maps[0][at : at + _SAMPLE], maps[1][at : at + _SAMPLE]) for at in starts)
