"""Finds heads: the project's own by their target, and others by the folder or hub id that a user names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from outrider.drafters.heads.config import HEAD_KINDS
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.weights.hub.downloads import download
from outrider.weights.hub.refs import is_hub_id
from outrider.weights.hub.trained import TrainedDraft, trained_drafts


def shipped_heads(target: TargetFingerprint) -> dict[str, Path]:
    """By kind, the folders of the heads that the project trained for ``target``; they may not be fetched yet."""
    return {head.kind: head.folder for head in _heads() if _target(head).digest == target.digest}


def shipped_for_others(target: TargetFingerprint, kinds: Collection[str]) -> list[str]:
    """Names of models with ``target``'s dimensions but other weights that have a head of one of ``kinds``."""
    found = [_target(head) for head in _heads() if head.kind in kinds]
    return list(dict.fromkeys(one.name for one in found if one.is_alike(target) and one.digest != target.digest))


def shipped_kinds(model: str) -> list[str]:
    """Kinds of the heads available for the built-in model ``model``; empty for other names. Loads no model."""
    return sorted(head.kind for head in _heads() if head.model == model and head.is_available)


def _heads() -> list[TrainedDraft]:
    return [draft for draft in trained_drafts() if draft.kind in HEAD_KINDS]


def _target(head: TrainedDraft) -> TargetFingerprint:
    fields: dict[str, Any] = dict(head.target)
    return TargetFingerprint(**fields)


def find_head(ref: str) -> Path:
    """The folder of the head that ``ref`` names: a folder, or a hub id ``org/name``, which is fetched once.

    Raises ``ModelFormatError``, ``ModelNotFoundError`` or ``DownloadError``.
    """
    path = Path(ref).expanduser()
    if path.exists() or not is_hub_id(ref):
        return path
    return download(ref)
