"""What the children of ``test_child.py`` do."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import Any


def serve(setup: Any) -> Callable[[Any], Any]:
    def respond(request: Any) -> Any:
        if request == "limits":
            return [setup, os.getpid(), resource.getrlimit(resource.RLIMIT_AS)[0]]
        if request == "hang":
            while True:
                pass
        if request == "eat":
            return len([bytearray(1 << 20) for _ in range(4096)])
        return request

    return respond
