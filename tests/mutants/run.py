"""Plant each seeded bug in a copy of the sources and see whether the tests notice: ``make mutants``.

    python -m tests.mutants.run                       all bugs, as a table
    python -m tests.mutants.run --area verify         those of one area; --only PART: whose name contains PART
    python -m tests.mutants.run --json                the result as JSON on standard output

The exit code is 1 if a bug escapes that should be caught, or if a bug no longer fits the sources.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from tests.mutants.bugs import ROOT, Bug, read_bugs, stale

COPIED = ("packages", "tests", "conftest.py", "docs", "benchmarks", "examples", "deploy", "README.md", "CHANGELOG.md",
          "pyproject.toml", "Makefile")  # fmt: skip
PASSED, FAILED = 0, 1  # of pytest's exit codes

# Imported once, in the process that all others are forked from: for most bugs that would take longer than their tests.
PRELOADED = ["torch", "numpy", "scipy.stats", "hypothesis", "pytest", "safetensors.torch", "tokenizers", "gguf",
             "llguidance", "pydantic", "fastapi", "httpx", "uvicorn", "typer"]  # fmt: skip

# Finding a counterexample is enough: making it small takes longer than all the rest.
PROFILE = """
from hypothesis import HealthCheck, Phase, settings
settings.register_profile("mutants", derandomize=True, deadline=None, database=None,
                          phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck))
"""

Status = Literal["caught", "timeout", "escaped", "error"]


@dataclass(frozen=True)
class Result:
    area: str
    name: str
    status: Status
    seconds: float
    expected: bool  # whether the tests should notice
    detail: str = ""

    @property
    def caught(self) -> bool:
        return self.status in ("caught", "timeout")


class Copy:
    """A copy of the repository in which one bug at a time is planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, folder / name)
        (folder / "weights").symlink_to(ROOT / "weights")
        (folder / "mutant_profile.py").write_text(PROFILE)

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        path = self.folder / bug.path
        original = path.read_text(encoding="utf-8")
        try:
            self._write(path, bug.apply(original))
            yield
        finally:
            self._write(path, original)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()  # of a text that may have the same size and time

    def pytest(self, arguments: Sequence[str], limit: float) -> tuple[int | None, list[str], str]:
        """Exit code (None if it took too long), the tests that failed, and what was printed."""
        cache, printed = self.folder / ".cache", self.folder / "printed.txt"
        shutil.rmtree(cache, ignore_errors=True)
        options = ["-q", "-x", "--tb=line", "--no-header", "-m", "not slow and not gpu", "-o", f"cache_dir={cache}"]
        options += ["-p", "mutant_profile", "--hypothesis-profile=mutants"]
        process = _FORKS.Process(target=_run_pytest, args=(str(self.folder), [*options, *arguments], str(printed)))
        process.start()
        process.join(limit)
        code = process.exitcode
        with contextlib.suppress(ProcessLookupError):
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)  # and what the tests have started
        process.join()
        failed = cache / "v" / "cache" / "lastfailed"
        names = sorted(json.loads(failed.read_text())) if failed.exists() else []
        return code, names, printed.read_text(errors="replace") if printed.exists() else ""


_FORKS = multiprocessing.get_context("forkserver")


def _of_this_checkout(path: Path) -> bool:
    return path == ROOT or path.is_relative_to(ROOT / "packages")


def _run_pytest(folder: str, arguments: list[str], printed: str) -> None:
    """In a process of its own: run pytest in a copy, with nothing of this repository imported yet."""
    os.setsid()
    out = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    os.chdir(folder)
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("tests", "conftest") or name.startswith("outrider")
    ]:
        del sys.modules[name]
    packages = sorted(Path(folder, "packages").iterdir())
    own = [folder, *(str(path / "src") for path in packages), *map(str, packages)]
    sys.path[:] = own + [path for path in sys.path if path and not _of_this_checkout(Path(path))]
    os.environ["PYTHONPATH"] = os.pathsep.join(own)  # of commands that tests start
    import pytest

    code = int(pytest.main(arguments))
    sys.stdout.flush()
    os._exit(code)  # threads that a bug left behind must not keep it


class Judge:
    """Plants bugs one after another in its copy; knows the tests that fail without one."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._sound: set[str] = set()  # tests that pass without a bug
        self._broken: set[str] = set()  # tests that fail without one, and so say nothing about it

    def judge(self, bug: Bug) -> Result:
        """Plant one bug and run its tests, without those that fail anyway."""
        began = time.monotonic()
        tests = [test for test in bug.tests if (self._copy.folder / test.partition("::")[0]).exists()]
        status, detail = self._run(bug, tests) if tests else ("escaped", "none of its tests exists")
        return Result(bug.area, bug.name, status, time.monotonic() - began, not bug.escapes, detail)

    def _run(self, bug: Bug, tests: Sequence[str]) -> tuple[Status, str]:
        while True:
            left_out = [argument for name in sorted(self._broken) for argument in ("--deselect", name)]
            with self._copy.planted(bug):
                code, failed, printed = self._copy.pytest([*tests, *left_out], bug.limit)
            if code is None:
                return "timeout", ""
            if code == PASSED:
                return "escaped", ""
            if code != FAILED or not failed:
                return "error", f"exit code {code}: {printed.strip()[-800:]}"
            if all(self._passes_without(name, bug.limit) for name in failed):
                return "caught", failed[0]

    def _passes_without(self, name: str, limit: float) -> bool:
        if name not in self._sound | self._broken:
            code, _, _ = self._copy.pytest([name], limit)
            (self._sound if code == PASSED else self._broken).add(name)
            if name in self._broken:
                _say(f"left out, as it fails without a bug: {name}")
        return name in self._sound


def judge_all(bugs: Sequence[Bug], workers: int) -> list[Result]:
    """Judge every bug, ``workers`` at a time, each in a copy of its own."""
    _FORKS.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        judges: SimpleQueue[Judge] = SimpleQueue()
        for i in range(workers):
            judges.put(Judge(Copy(Path(folder) / str(i))))

        def one(numbered: tuple[int, Bug]) -> Result:
            judge = judges.get()
            try:
                result = judge.judge(numbered[1])
            finally:
                judges.put(judge)
            number = f"[{numbered[0]:3}/{len(bugs)}]"
            _say(f"{number} {result.status:8}{result.seconds:6.1f} s  {result.area}: {result.name}")
            return result

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(one, enumerate(bugs, 1)))


def report(results: Sequence[Result]) -> str:
    """A row an area, then what escaped."""
    lines = ["", f"{'area':<12}{'bugs':>6}{'caught':>8}"]
    for area in dict.fromkeys(result.area for result in results):
        own = [result for result in results if result.area == area]
        lines.append(f"{area:<12}{len(own):>6}{sum(result.caught for result in own):>8}")
    caught = sum(result.caught for result in results)
    lines.append(f"{'all':<12}{len(results):>6}{caught:>8}  {caught / max(1, len(results)):.1%}")
    for result in results:
        if not result.caught:
            word = f"{result.status.upper()}" + ("" if result.expected else ", as expected")
            lines.append(f"{word}: {result.area}: {result.name}" + (f"\n{result.detail}" * (result.status == "error")))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__.splitlines()[0])
    parser.add_argument("--area", help="only the bugs of this area")
    parser.add_argument("--only", metavar="PART", help="only bugs whose name contains PART")
    parser.add_argument("--workers", type=int, default=2, help="bugs at a time")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    bugs = [b for b in read_bugs() if options.area in (None, b.area) and (options.only or "") in b.name]
    if problems := stale(bugs):
        _say("\n".join(problems))
        return 1
    results = judge_all(bugs, options.workers)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        print(report(results))
    return int(any(result.expected and not result.caught for result in results))


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
