"""A llama.cpp that computes nothing, for tests of what is measured beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench import fake_llama_cpp


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Interpreters started from now on have the stand-in for llama-cpp-python, which writes here."""
    folder = tmp_path / "interpreter"
    folder.mkdir()
    shutil.copy(fake_llama_cpp.__file__, folder / "llama_cpp.py")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("FAKE_BATCHES", str(folder / "notes"))
    return folder / "notes"
