"""llama.cpp's answers for small GGUF files, by a Python that has llama-cpp-python: this one, or another."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

WORKER = Path(__file__).with_name("reference_worker.py")
IDS = [1, *range(259, 277), *range(40, 61)]
"""A prompt longer than the windows of the small models."""


def installed() -> bool:
    return importlib.util.find_spec("llama_cpp") is not None


class LlamaCpp:
    """A worker, started again when it dies: llama.cpp aborts on some files."""

    def __init__(self, python: str = sys.executable) -> None:
        self._command = [python, str(WORKER)]
        self._start()

    def _start(self) -> None:
        self._child = subprocess.Popen(
            self._command,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._child.stdout is not None
        self.version: str = json.loads(self._child.stdout.readline())["version"]

    def __enter__(self) -> LlamaCpp:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._child.kill()
        self._child.communicate()

    def _ask(self, **question: Any) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._child.communicate()
        self._start()
        return {"error": "llama.cpp aborts"}

    def logits(self, path: Path, ids: Sequence[int] = IDS) -> list[float] | str:
        """A few logits behind ``ids``, or why llama.cpp refuses the file."""
        said = self._ask(path=str(path), ids=list(ids))
        return sample(said["logits"][-1]) if "logits" in said else str(said["error"])

    def suppressed(self, path: Path) -> list[int]:
        """Tokens that llama.cpp's own programs never sample from this model."""
        return list(self._ask(path=str(path), ids=IDS[:2])["suppressed"])

    def tokenize(self, path: Path, texts: Sequence[str]) -> list[list[int]] | str:
        said = self._ask(path=str(path), texts=list(texts))
        return said.get("ids") or str(said["error"])


def sample(row: Sequence[float]) -> list[float]:
    return [float(f"{value:.6g}") for value in row[3::23]]


def same(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Within what float32 in another order, and llama.cpp's float16 table of GELU, give."""
    scale = max(map(abs, theirs))
    return all(abs(a - b) <= 3e-3 * scale for a, b in zip(ours, theirs, strict=True))
