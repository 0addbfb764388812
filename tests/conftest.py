"""Tests run two at a time on two cores: more threads than one each would only wait for one another."""

from __future__ import annotations

import os

import torch

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of commands that tests start
