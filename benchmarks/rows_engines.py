"""The engines whose forward passes ``benchmarks.rows`` times: ours, llama.cpp in Python, and any ``llama-bench``."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outrider import __version__
from outrider.errors import ConfigError
from outrider.models.base import LoadedModel
from outrider_lab.measure import PassTimer

_SCRIPT = Path(__file__).with_name("llama_cpp_rows.py")

Times = dict[int, list[float]]
"""Seconds of forward passes by the number of rows; those of a prompt under minus its length."""


@dataclass(frozen=True)
class Passes:
    """What every engine times in its turn."""

    rows: Sequence[int]
    prompt: int  # tokens, from the start of a text; 0: none
    context: int  # tokens before the rows
    repeat: int  # passes of each number of rows; a prompt is read once

    @property
    def most(self) -> int:
        return max(*self.rows, self.prompt)


class Engine(Protocol):
    """A model that is loaded and waits for its turn."""

    @property
    def name(self) -> str: ...

    @property
    def load_s(self) -> float | None:
        """Seconds to load the model, None if not known."""
        ...

    def turn(self) -> Times: ...

    def peak_mb(self) -> float | None:
        """The most memory that was resident so far, pages of the file included; None if not known."""
        ...

    def close(self) -> None: ...


class Outrider:
    """Our model, with the logits of all rows, as drafts need them; of a prompt the last row's."""

    def __init__(self, load: Callable[[], LoadedModel], passes: Passes) -> None:
        self.name, self._passes = f"outrider {__version__}", passes
        _forget_peak()
        began = time.perf_counter()
        self.model = model = load()
        self.load_s = time.perf_counter() - began
        self._rows = PassTimer(model, passes.context, max(passes.rows))
        self._prompt = PassTimer(model, 0, passes.prompt) if passes.prompt else None

    def turn(self) -> Times:
        found: Times = {}
        for rows in self._passes.rows:
            found[rows] = [self._rows.seconds(rows) for _ in range(self._passes.repeat + 1)][1:]
        if self._prompt is not None:
            self._prompt.seconds(1, last_logits=True)
            found[-self._passes.prompt] = [self._prompt.seconds(self._passes.prompt, last_logits=True)]
        return found

    def peak_mb(self) -> float | None:
        return _peak_mb("self")

    def close(self) -> None:
        """Nothing to end."""


class LlamaCpp:
    """llama.cpp of llama-cpp-python, in a process of its own."""

    def __init__(self, python: str, file: Path, threads: int, passes: Passes) -> None:
        self._passes, self._python = passes, python
        command = [python, str(_SCRIPT), str(file), *map(str, (threads, passes.context, passes.most))]
        began = time.perf_counter()
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # not a pipe, which nobody would empty
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
            )
        except OSError as error:
            raise ConfigError(f"peer 'llama.cpp:{python}' does not start ({error}): name an interpreter") from None
        self.name = f"llama.cpp {self._read()}"
        self.load_s = time.perf_counter() - began

    def turn(self) -> Times:
        asked = [(rows, self._passes.repeat, "all") for rows in self._passes.rows]
        asked += [(self._passes.prompt, 1, "last")] if self._passes.prompt else []
        return {rows if logits == "all" else -rows: self._ask(rows, times, logits) for rows, times, logits in asked}

    def peak_mb(self) -> float | None:
        return _peak_mb(str(self._process.pid))

    def close(self) -> None:
        self._process.communicate()
        self._said.close()

    def _ask(self, rows: int, times: int, logits: str) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rows} {times} {logits}\n")
        self._process.stdin.flush()
        return [float(seconds) for seconds in json.loads(self._read())]

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            self._said.seek(0)
            said = self._said.read()
            if "No module named 'llama_cpp'" in said:
                raise ConfigError(
                    f"peer 'llama.cpp': {self._python} has no llama-cpp-python: pip install llama-cpp-python, "
                    "or name an interpreter that has it, llama.cpp:PYTHON"
                )
            raise ConfigError(f"peer 'llama.cpp' ended early: {said[-1000:]}")
        return line.strip().strip('"')


class LlamaBench:
    """A ``llama-bench`` program, as ik_llama.cpp builds one. It starts anew in every turn, and warms up by itself.

    It reads from the start of a text and computes the last row's logits only, which makes few rows a little cheaper
    than ours.
    """

    def __init__(self, name: str, command: str, file: Path, threads: int, passes: Passes) -> None:
        self.name, self._passes = name, passes
        self.load_s = None  # in every turn anew, and not told
        self._command = [*shlex.split(command), "-m", str(file), "-t", str(threads), "-n", "0", "-o", "json"]

    def turn(self) -> Times:
        found = self._run(self._passes.rows, self._passes.repeat)
        if self._passes.prompt:
            found[-self._passes.prompt] = self._run([self._passes.prompt], 1).pop(self._passes.prompt)
        return found

    def peak_mb(self) -> float | None:
        """Not known: the process has ended."""
        return None

    def close(self) -> None:
        """Nothing to end."""

    def _run(self, rows: Sequence[int], repeat: int) -> Times:
        command = [*self._command, "-p", ",".join(map(str, rows)), "-r", str(repeat)]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        except OSError as error:
            raise ConfigError(f"peer {self.name!r} does not start ({error}): name its llama-bench program") from None
        if done.returncode:
            raise ConfigError(f"peer {self.name!r} ended with {done.returncode}: {done.stderr[-1000:]}")
        tests = json.loads(done.stdout)
        return {int(test["n_prompt"]): [ns / 1e9 for ns in test["samples_ns"]] for test in tests}


def _peak_mb(process: str) -> float | None:
    status = Path("/proc", process, "status")
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return None if peak is None else int(peak[1]) / 1000


def _forget_peak() -> None:
    """Count this process's peak from now on, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def open_peer(peer: str, file: Path, threads: int, passes: Passes) -> Engine:
    """``llama.cpp:PYTHON``, or ``NAME:COMMAND`` of a llama-bench. Raises ``ConfigError`` with the remedy."""
    name, _, rest = peer.partition(":")
    if not rest:
        raise ConfigError(f"peer={peer!r} cannot be read: write llama.cpp:PYTHON, or ik:PATH of its llama-bench")
    if name == "llama.cpp":
        return LlamaCpp(rest, file, threads, passes)
    return LlamaBench(name, rest, file, threads, passes)
