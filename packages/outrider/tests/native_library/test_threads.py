"""The library's contexts: threads that sleep, end and are made anew in a forked child."""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from outrider.errors import ConfigError
from outrider.native.context import NativeContext, current_context, own_context
from outrider.native.library import library
from outrider.native.stored import StoredTensor
from outrider.native.weights import NativeWeight, pack

pytestmark = [
    pytest.mark.skipif(library() is None, reason="no native library"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
TICK = 1 / os.sysconf("SC_CLK_TCK")


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


def num_tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def become_tasks(expected: int) -> bool:
    """Whether there come to be this many threads: the system lists one for a moment longer than it can be joined."""
    end = time.perf_counter() + 2
    while num_tasks() != expected and time.perf_counter() < end:
        time.sleep(0.001)
    return num_tasks() == expected


def test_threads_of_another_context_sleep_while_there_is_work() -> None:
    idle, working = (layer_in(NativeContext(count)) for count in (5, 2))
    for layer in (idle, working):
        multiply_for(0.05, layer)
    before = busy_seconds()
    multiply_for(0.4, working)
    spent = {name: seconds - before.get(name, 0) for name, seconds in busy_seconds().items()}
    assert sum(seconds > 2 * TICK for seconds in spent.values()) <= 2, spent


def layer_in(context: NativeContext) -> NativeWeight:
    return pack(StoredTensor.of(np.ones((3072, 576), np.float32)), target="q8_0", context=context)


@pytest.mark.slow
def test_threads_end_with_their_context_and_its_memory_is_freed() -> None:
    gc.collect()
    time.sleep(0.05)  # for threads of tests before
    before, held = num_tasks(), resident_bytes()
    for _ in range(60):  # 3 threads and some megabytes each
        layer = layer_in(NativeContext(4))
        assert become_tasks(before + 3)
        layer(np.ones((2000, layer.inputs), np.float32))
        del layer
        gc.collect()
        assert become_tasks(before)
    assert resident_bytes() < held + (64 << 20)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_forked_child_has_threads_of_its_own_and_ends_without_those_of_its_parent() -> None:
    layer, x = layer_in(NativeContext(3)), np.ones((5, 576), np.float32)
    expected, before = layer(x).tobytes(), num_tasks()
    child = os.fork()
    if child == 0:
        same = layer(x).tobytes() == expected and num_tasks() == 3  # it began with one
        del layer
        gc.collect()
        os._exit(0 if same and num_tasks() == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert num_tasks() == before
    assert layer(x).tobytes() == expected


def test_counts_and_sets_that_are_not_possible_are_refused() -> None:
    for count in (0, -1, 257, 1000):
        with pytest.raises(ConfigError, match=f"threads={count} .* 1 to 256"):
            NativeContext(count)
    with pytest.raises(ConfigError, match="with avx9000 are not possible"):
        NativeContext(1, "avx9000")


def test_what_is_loaded_together_shares_a_context() -> None:
    with own_context(2):
        first, second = current_context(), layer_in(current_context()).context
        assert first is second is pack(StoredTensor.of(np.ones((16, 32), np.float32))).context
        assert first.threads == 2
    with own_context(2):
        assert current_context() is not first
    assert current_context() is current_context() is not first
