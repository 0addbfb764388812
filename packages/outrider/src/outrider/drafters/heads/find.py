"""Where heads are: those that come with the package, found by their target, and those that a user names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.hub.downloads import download, is_hub_id
from outrider.utils.json_files import read_json_object

FOLDER = Path(__file__).parents[6] / "weights"
"""``shipped/<model>/<kind>/``: folders as ``save_head`` writes them."""


def shipped_heads(target: TargetFingerprint, folder: Path = FOLDER) -> dict[str, Path]:
    """Folders of the heads trained for ``target``, by kind."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*/*/config.json")):
        config = HeadConfig.from_json(read_json_object(path))
        if config.fits(target):
            found.setdefault(config.kind, path.parent)
    return found


def shipped_for_others(target: TargetFingerprint, kinds: Collection[str], folder: Path = FOLDER) -> list[str]:
    """Names of models like ``target`` that have a head of one of ``kinds``, for weights that differ from its own."""
    configs = [HeadConfig.from_json(read_json_object(path)) for path in sorted(folder.glob("*/*/config.json"))]
    alike = [config.target for config in configs if config.kind in kinds and config.target.is_alike(target)]
    return list(dict.fromkeys(found.name for found in alike if found.digest != target.digest))


def shipped_kinds(model: str, folder: Path = FOLDER) -> list[str]:
    """Kinds of the heads shipped for a built-in model, without loading it; none for other names."""
    return sorted(path.parent.name for path in folder.glob("*/*/config.json") if path.parts[-3] == model)


def find_head(ref: str) -> Path:
    """The folder of the head ``ref`` names: a folder, or a hub id ``org/name``, which is fetched once.

    Raises ``ModelFormatError``, ``ModelNotFoundError`` or ``DownloadError``.
    """
    path = Path(ref).expanduser()
    if path.exists() or not is_hub_id(ref):
        return path
    return download(ref)
