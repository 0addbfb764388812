"""Starts a backend in its own process, so that backends share neither memory nor threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError

_START = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('outrider_lab.bench.worker', run_name='__main__', alter_sys=True)"
)
"""Appends this package to the interpreter's own path, as it need not be installed there."""

_PACKAGES = {"llama_cpp": "llama-cpp-python", "openvino_genai": "openvino-genai"}
"""Names on PyPI of modules that have another name there."""


class PeerProcess:
    """``outrider_lab.bench.worker`` in an interpreter that has the backend's library."""

    def __init__(
        self, name: str, folder: Path, dtype: str, threads: int, python: str = sys.executable, draft: str = ""
    ) -> None:
        self.name = name
        command = [
            python,
            "-c",
            _START,
            str(Path(__file__).parents[2]),
            name,
            str(folder),
            "--dtype",
            dtype,
            "--threads",
            str(threads),
        ]
        command += ["--draft-model", draft] if draft else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )  # its own session: Ctrl-C stops only this process
        self.started = self._read()
        if missing := self.started.get("missing"):
            self.close()
            package = _PACKAGES.get(missing, missing)
            raise ConfigError(
                f"peer {name.partition(':')[0]!r} needs {package}, which {python} does not have: pip install "
                f"{package}, or name an interpreter that has it with --python"
            )

    def generate(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Send all prompts at once and wait for all outputs."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConfigError(f"peer {self.name!r} ended early (is its library installed?); its message is above")
        answer: dict[str, Any] = json.loads(line)
        return answer
