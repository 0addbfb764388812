"""Trained heads: small networks that read a target's features and guess its next tokens."""

from typing import TYPE_CHECKING, Any

from outrider.drafters.heads.config import HEAD_KINDS, HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint

if TYPE_CHECKING:
    from outrider.drafters.heads.checkpoint import load_head, make_head, save_head

__all__ = ["HEAD_KINDS", "HeadConfig", "TargetFingerprint", "load_head", "make_head", "save_head"]


def __getattr__(name: str) -> Any:
    """Heads are networks of torch, which is imported when the first one is."""
    if name not in ("load_head", "make_head", "save_head"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from outrider.drafters.heads import checkpoint

    return getattr(checkpoint, name)
