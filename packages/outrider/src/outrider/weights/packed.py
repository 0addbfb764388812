"""Packed weights in the user's cache: ``packed/NAME-HASH/DTYPE.panels`` for the model in a folder."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from outrider.models.shard import Shard
from outrider.native.identity import PackedPlace
from outrider.native.packed_file import SUFFIX, read_facts
from outrider.utils.user_cache import cache_root, locked

__all__ = ["delete_folder", "delete_packed", "packed_folder", "packed_models", "packed_place", "packed_size"]


def packed_folder(folder: Path) -> Path:
    """The place of the packed weights of the model in ``folder``, in all its precisions and shares."""
    real = folder.resolve()
    return cache_root() / "packed" / f"{real.name}-{hashlib.sha256(os.fsencode(real)).hexdigest()[:12]}"


def packed_place(folder: Path, dtype: str, shard: Shard | None, *, progress: bool) -> PackedPlace:
    """The place for one precision, or a share of a model."""
    share = "" if shard is None else f"-{shard.rank}-of-{shard.size}"
    return PackedPlace(packed_folder(folder) / f"{dtype}{share}{SUFFIX}", str(folder.resolve()), progress)


def packed_size(folder: Path) -> int:
    """Bytes of all packed weights of the model in ``folder``."""
    return sum(path.stat().st_size for path in packed_folder(folder).glob(f"*{SUFFIX}"))


def delete_packed(folder: Path) -> int:
    """Delete the packed weights of the model in ``folder``; returns their bytes. Processes that use them go on."""
    place = packed_folder(folder)
    if not place.is_dir():
        return 0
    with locked(f"packed-{place.name}"):
        return delete_folder(place)


def delete_folder(folder: Path) -> int:
    """The bytes of a folder that is now gone; 0 if it was not there."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    shutil.rmtree(folder, ignore_errors=not folder.is_dir())
    return size


def packed_models() -> list[Path]:
    """The folders of all models whose weights are kept packed, those that are gone included."""
    models = list[Path]()
    for place in sorted((cache_root() / "packed").glob("*")):
        facts = [found for path in sorted(place.glob(f"*{SUFFIX}")) if (found := read_facts(path)) is not None]
        if facts:
            models.append(Path(str(facts[0].get("model"))))
    return models
