"""The fuzzer of model files: a brief run finds nothing, and it would find each kind of failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.errors import ModelFormatError
from tests.weights.fuzz import __main__ as fuzz
from tests.weights.fuzz.kinds import Kind


@pytest.mark.slow
def test_a_brief_run_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.weights.fuzz", "--count", "25", "--seed", "7", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["cases"] == 25


def refuse(message: str) -> Callable[[Path], object]:
    def open_it(_: Path) -> object:
        raise ModelFormatError(message)

    return open_it


def crash(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("open_it", "outcome"),
    [
        (lambda _: None, "loaded"),
        (refuse("wrong"), "refused"),
        (refuse("wrong\nand more"), "says too much"),
        (refuse("w" * 1000), "says too much"),
        (lambda path: path / 1, "raises"),
        (lambda _: b"1" * (1 << 29), "takes memory"),
        (crash, "crashes"),
    ],
)
def test_what_counts_as_a_failure(
    open_it: Callable[[Path], object], outcome: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fuzz, "MEMORY", 1 << 28)
    assert fuzz.attempt(Kind("it", tmp_path, {}, open_it), tmp_path).outcome == outcome


def test_hangs_and_slow_refusals_are_failures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def spin(_: Path) -> None:
        while True:
            pass

    monkeypatch.setattr(fuzz, "SLOW", -1.0)
    assert fuzz.attempt(Kind("it", tmp_path, {}, refuse("wrong")), tmp_path).outcome == "is slow"
    monkeypatch.setattr(fuzz, "PATIENCE", 0.2)
    assert fuzz.attempt(Kind("it", tmp_path, {}, spin), tmp_path).outcome == "hangs"
