"""Tests run two at a time on two cores: more threads than one each would only wait for one another.

Generated examples are the same in every run, so that a change is what makes a test fail;
``--hypothesis-profile=explore`` looks for new ones.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # of commands that tests start
os.environ["GOMP_SPINCOUNT"] = "1000"  # the few tests of several threads have no core of their own; read by torch

import torch
from hypothesis import settings

torch.set_num_threads(1)

settings.register_profile("same", derandomize=True)
settings.register_profile("explore", derandomize=False)
settings.load_profile("same")
