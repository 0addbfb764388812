"""A published DSpark head beside its model: found by its name, or by the target that its configuration names.

::

    LFM2.5-2.6B/            LFM2.5-2.6B-DSpark/              folders, side by side
    LFM2.5-2.6B-Q4_K_M.gguf LFM2.5-2.6B-DSpark-BF16.gguf     files in one folder
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from outrider.drafters.trained.heads import load_head
from outrider.errors import ConfigError, IncompatibleDraftError, MissingExtensionError, ModelFormatError
from outrider.models.native_llama import NativeLlamaModel
from outrider.utils.json_files import read_json_object

__all__ = ["dspark_beside", "find_dspark"]

logger = logging.getLogger(__name__)


def find_dspark(model: str) -> Path | None:
    """The DSpark head beside the model at path ``model``: a folder or a GGUF file; None: there is none."""
    path = Path(model).expanduser()
    if not path.exists():
        return None
    path = path.resolve() if path.is_dir() else path.parent.resolve() / path.name  # a file may be a link to a blob
    near = [each for each in sorted(path.parent.iterdir()) if "dspark" in each.name.lower() and each != path]
    if path.is_dir():
        return next((each for each in near if (each / "config.json").is_file() and _is_for(each, path.name)), None)
    files = [each for each in near if each.suffix == ".gguf"]
    return next((each for each in files if _shares_name(each.name, path.name)), None)


def dspark_beside(model: str, target: object) -> Any:
    """The head of ``find_dspark``, loaded; None: there is none, or, after a line in the log, none for ``target``."""
    path = find_dspark(model) if isinstance(target, NativeLlamaModel) and not target.config.hears else None
    if path is None or not isinstance(target, NativeLlamaModel):
        return None
    try:
        return load_head(path, target, model)
    except (ModelFormatError, IncompatibleDraftError, MissingExtensionError, ConfigError) as error:
        logger.warning("%s is not used as a draft head: %s", path, error)
        return None


def _is_for(head: Path, name: str) -> bool:
    """Whether a head's folder has the model's name with -DSpark behind, or its configuration names the model."""
    if head.name.lower() == f"{name}-dspark".lower():
        return True
    try:
        raw = read_json_object(head / "config.json")
    except ModelFormatError:
        return False
    verifier = (raw.get("speculators_config") or {}).get("verifier") or {}
    named = verifier.get("name_or_path")
    return isinstance(named, str) and named.rstrip("/").rpartition("/")[2] == name


def _shares_name(head: str, model: str) -> bool:
    """Whether a head's file has the model's name up to its own -DSpark."""
    own = head.lower().partition("dspark")[0].rstrip("-_.")
    return bool(own) and os.path.basename(model).lower().startswith(own)
