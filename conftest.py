"""Tests run two at a time on two cores: more threads than one each would only wait for one another.

Generated examples are the same in every run, so that a change is what makes a test fail;
``--hypothesis-profile=explore`` looks for new ones.

``--minutes 20`` runs tests in random order, as many as begin within that time, and counts the others as skipped: a fair
sample of a product that would take too long, as that of ``tests/exactness``.
"""

from __future__ import annotations

import gc
import math
import os
import random
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # of commands that tests start
os.environ["GOMP_SPINCOUNT"] = "1000"  # the few tests of several threads have no core of their own; read by torch

import pytest
from hypothesis import settings

from outrider.drafters.shared_answers import VARIABLE
from outrider.engine import memory_plan
from outrider.engine.draft_length.calibration import CALIBRATION_S
from outrider.native.library import library
from outrider.native.processor import set_num_threads

set_num_threads(1)
os.environ[CALIBRATION_S] = "0.02"  # a second for each ``LLM`` would be most of what many tests take
os.environ[VARIABLE] = "off"  # else what is drafted would depend on earlier runs

_ROOT = Path(__file__).parent
_PATHS = [
    str(_ROOT),
    *map(str, sorted(_ROOT.glob("packages/*"))),
]  # for commands that tests start: where the packages of tests are found
os.environ["PYTHONPATH"] = os.pathsep.join([*_PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

_END = pytest.StashKey[float]()
"""When the time of ``--minutes`` is over, on the monotonic clock."""

settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile("same")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paged caches of engines have blocks of 4 tokens, so that short prompts share some."""
    monkeypatch.setattr(memory_plan, "BLOCK_SIZE", 4)


def pytest_collection_finish() -> None:
    """The tests and what they import stay to the end: looking through them for garbage is a tenth of the time.

    To look for the garbage of tests more rarely is a twentieth. The library is loaded before a test names another
    cache, where it would be compiled anew.
    """
    library()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, default=math.inf, help="begin no test later than this")
    parser.addoption("--order", type=int, default=0, help="another random order for --minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    minutes = config.getoption("--minutes")
    if not math.isinf(minutes):
        random.Random(config.getoption("--order")).shuffle(items)
        config.stash[_END] = time.monotonic() + 60 * minutes


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash.get(_END, math.inf):
        pytest.skip("no time left of --minutes")
