"""Trained heads: small networks that read a target's features and guess its next tokens."""

from outrider.heads.checkpoint import load_head, make_head, save_head
from outrider.heads.config import HEAD_KINDS, HeadConfig
from outrider.heads.fingerprint import TargetFingerprint

__all__ = ["HEAD_KINDS", "HeadConfig", "TargetFingerprint", "load_head", "make_head", "save_head"]
