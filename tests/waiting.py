"""Waits until something is true."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.005)
