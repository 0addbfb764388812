"""Questions to benchmark with. They live in the package, where ``outrider bench`` and ``plan`` use them too."""

from __future__ import annotations

from outrider.data.workloads import BUILT_IN, Question, read

__all__ = ["BUILT_IN", "Question", "read"]
