"""The child that tries grammars, with 12 MB more than it needs to start."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider.verify.grammar import sandbox


def serve(vocabulary: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    check = sandbox.serve(vocabulary)
    used = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (used + (12 << 20), resource.RLIM_INFINITY))
    return check
