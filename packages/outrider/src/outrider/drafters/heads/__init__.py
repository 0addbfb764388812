"""Trained heads: small networks that read a target's features and guess its next tokens."""

from outrider.drafters.heads.checkpoint import read_head
from outrider.drafters.heads.config import HEAD_KINDS, HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.drafters.heads.weights import HeadWeights

__all__ = ["HEAD_KINDS", "HeadConfig", "HeadWeights", "TargetFingerprint", "read_head"]
