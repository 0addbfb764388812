"""Speculative execution of any slow sampler, whose values need not be tokens."""

from __future__ import annotations

from outrider_lab.speculation.laws import Density, Normal, Point
from outrider_lab.speculation.report import Report, Result
from outrider_lab.speculation.run import speculate, speculate_async

__all__ = ["Density", "Normal", "Point", "Report", "Result", "speculate", "speculate_async"]
