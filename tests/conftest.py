"""Tests run two at a time on two cores: more threads than one each would only wait for one another.

Generated examples are the same in every run, so that a change is what makes a test fail;
``--hypothesis-profile=explore`` looks for new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

os.environ["OMP_NUM_THREADS"] = "1"  # of commands that tests start
os.environ["GOMP_SPINCOUNT"] = "1000"  # the few tests of several threads have no core of their own; read by torch

import pytest
import torch
from hypothesis import settings

from outrider.engine import engine
from outrider.engine.adaptive.cost import calibrate
from outrider.engine.adaptive.settings import DEFAULT_SETTINGS

torch.set_num_threads(1)

settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def _brief_calibration() -> Iterator[None]:
    """A second of timing for each ``LLM`` would be most of what many tests take; it decides about speed alone."""
    brief = replace(DEFAULT_SETTINGS, calibration_repeats=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "calibrate", partial(calibrate, settings=brief))
        yield
