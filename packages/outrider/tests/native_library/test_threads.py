"""The library's threads: those that are wanted work, and others sleep."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from outrider.native.library import library
from outrider.native.weights import NativeWeight, pack_array

pytestmark = [
    pytest.mark.skipif(library() is None, reason="no native library"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
TICK = 1 / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def native() -> Iterator[ctypes.CDLL]:
    found = library()
    assert found is not None
    before = found.outrider_threads()
    yield found
    found.outrider_set_threads(before)


def busy_seconds() -> dict[str, float]:
    """Processor time of each thread of this process."""
    spent = {}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        spent[task.name] = (int(fields[11]) + int(fields[12])) * TICK
    return spent


def multiply_for(seconds: float, layer: NativeWeight) -> None:
    x, end = np.ones((1, layer.inputs), np.float32), time.perf_counter() + seconds
    while time.perf_counter() < end:
        layer(x)


def test_threads_beyond_those_wanted_sleep_while_there_is_work(native: ctypes.CDLL) -> None:
    layer = pack_array(np.ones((3072, 576), np.float32), "q8_0")
    for count in (5, 2):
        native.outrider_set_threads(count)
        multiply_for(0.05, layer)
    before = busy_seconds()
    multiply_for(0.4, layer)
    spent = {name: seconds - before.get(name, 0) for name, seconds in busy_seconds().items()}
    assert sum(seconds > 2 * TICK for seconds in spent.values()) <= 2, spent


def test_a_count_out_of_range_is_refused(native: ctypes.CDLL) -> None:
    for count in (0, -1, 1000):
        assert native.outrider_set_threads(count) != 0
