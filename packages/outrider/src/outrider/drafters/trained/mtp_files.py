"""Draft heads (multi-token prediction) in folders of their own, as ``outrider train mtp`` writes them.

::

    FOLDER/model.safetensors    mtp.*: named, ordered and offset as in the files of the target's family
    FOLDER/config.json          kind, target, acceptance, training
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.drafters.heads.checkpoint import CONFIG, WEIGHTS
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.drafters.trained.mtp_head import MtpHead, layer_config
from outrider.errors import ConfigError, IncompatibleDraftError, ModelFormatError
from outrider.models.base import HeadTarget
from outrider.models.config import ModelConfig
from outrider.utils.json_files import read_json_object, shown
from outrider.weights.families import FAMILIES
from outrider.weights.files.parts import TensorPart, find_parts, stored_parts
from outrider.weights.files.safetensors import read_header, stored_tensors

__all__ = ["MtpFile", "is_mtp", "mtp_parts", "read_mtp", "read_mtp_file"]

KIND = "mtp"


@dataclass(frozen=True)
class MtpFile:
    """The ``config.json`` of a head."""

    target: TargetFingerprint
    acceptance: tuple[tuple[float, ...], ...] = ()
    """[position][rank]: how often the target's token had this rank among the guesses, on held-out text."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Data, command, seed, metrics."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object of ``config.json``."""
        return {"format": 1, "kind": KIND, **dataclasses.asdict(self)}


def is_mtp(folder: Path) -> bool:
    """Whether ``folder`` holds a head of this kind. Raises ``ModelFormatError`` without a readable ``config.json``."""
    return read_json_object(folder / CONFIG).get("kind") == KIND


def read_mtp_file(folder: Path) -> MtpFile:
    """The configuration in ``folder``. Raises ``ModelFormatError``."""
    raw = read_json_object(folder / CONFIG)
    if raw.get("format") != 1 or raw.get("kind") != KIND:
        raise ModelFormatError(
            f"{folder / CONFIG}: format={shown(raw.get('format'))}, kind={shown(raw.get('kind'))} is no {KIND} head"
        )
    try:
        acceptance = tuple(tuple(map(float, row)) for row in raw["acceptance"])
        made = MtpFile(TargetFingerprint(**raw["target"]), acceptance, dict(raw["training"]))
    except (TypeError, ValueError, KeyError) as error:
        raise ModelFormatError(f"{folder / CONFIG} is no head's ({shown(str(error))}): train it again") from None
    if not all(0 <= chance <= 1 for row in acceptance for chance in row):
        raise ModelFormatError(f"{folder / CONFIG}: acceptance holds numbers that are no probabilities")
    return made


def mtp_parts(config: ModelConfig) -> dict[str, TensorPart]:
    """By canonical name, where a head's tensors are in the file of a head for a target of ``config``."""
    family = FAMILIES[config.family]
    parts, _ = find_parts(
        dataclasses.replace(config, mtp_layers=1),
        lambda name: name,
        interleaved=family.interleaved,
        norm_offset=family.norm_offset,
    )
    return {name: part for name, part in parts.items() if name.startswith("mtp.")}


def read_mtp(folder: Path, target: HeadTarget, found: TargetFingerprint) -> MtpHead:
    """The head in ``folder``. ``found``: the fingerprint of ``target``, the model that is loaded.

    Raises:
        ModelFormatError: a file is damaged.
        IncompatibleDraftError: the head was trained for another target.
        ConfigError: other code than ours runs the target.
    """
    about = read_mtp_file(folder)
    if dataclasses.replace(about.target, name="") != dataclasses.replace(found, name=""):
        raise IncompatibleDraftError(
            f"this mtp head was trained for another target ({about.target.facts()}), not for the one loaded "
            f"({found.facts()}): use its own, or train one with `outrider train mtp`"
        )
    if getattr(target, "implementation", "") not in ("native", "torch"):
        raise ConfigError(f"the mtp head {folder} needs implementation='native' or 'torch': use auto")
    path, parts = folder / WEIGHTS, mtp_parts(target.config)
    if not path.is_file():
        raise ModelFormatError(f"{folder} has no {WEIGHTS}: train the head again")
    infos = read_header(path)
    expected = {part.tensor: part.shape for part in parts.values()}
    shapes = {name: info.shape for name, info in infos.items()}
    for name in sorted({*expected, *shapes}):
        if shapes.get(name) != expected.get(name):
            raise ModelFormatError(
                f"{path}: tensor {shown(name)} has shape {shapes.get(name)}, expected {expected.get(name)}"
            )
    stored = stored_parts(parts, stored_tensors(dict.fromkeys(infos, path), infos))
    tensors = {f"model.{name.removeprefix('mtp.')}": weight for name, weight in stored.items()}
    return MtpHead(layer_config(target.config), tensors, acceptance=about.acceptance)
