"""An activation whose arguments are clamped."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ClampedSwiGLU"]


@dataclass(frozen=True, kw_only=True)
class ClampedSwiGLU:
    """``g * sigmoid(alpha * g) * (u + 1)`` of gate g and up u, g at most ``limit`` and u within +- of it (gpt-oss)."""

    alpha: float
    limit: float
