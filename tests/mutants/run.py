"""Plant each seeded bug in a copy of the sources and see whether the tests notice: ``make mutants``.

    python -m tests.mutants.run                       all bugs, as a table
    python -m tests.mutants.run --area verify         those of one area; --only PART: whose name contains PART
    python -m tests.mutants.run --tests-from REF      with the tests of another git revision, to compare suites
    python -m tests.mutants.run --json                the result as JSON on standard output

The exit code is 1 if a bug escapes that should be caught, or if a bug no longer fits the sources.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from tests.mutants.bugs import ROOT, Bug, read_bugs, stale

COPIED = ("src", "tests", "docs", "benchmarks", "examples", "README.md", "CHANGELOG.md", "pyproject.toml", "Makefile")
LIMIT = 150.0  # seconds for one bug's tests; a bug that makes them hang is caught
BASELINE_LIMIT = 1800.0
FAILED, NOTHING_RAN = 1, 5  # of pytest's exit codes

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

    def __init__(self, folder: Path, tests_from: str | None) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, folder / name)
        if tests_from is not None:
            shutil.rmtree(folder / "tests")
            packed = subprocess.run(["git", "archive", tests_from, "tests"], cwd=ROOT, capture_output=True, check=True)
            with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
                archive.extractall(folder, filter="data")
        (folder / "mutant_profile.py").write_text(PROFILE)

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        path = self.folder / "src" / "outrider" / bug.file
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

    def pytest(self, arguments: Sequence[str], limit: float) -> tuple[int | None, str]:
        """Exit code, None if it took too long, and what was printed."""
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "not slow and not gpu", "--no-header"]
        command += ["-p", "mutant_profile", "--hypothesis-profile=mutants", *arguments]
        environment = os.environ | {"PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self.folder}"}
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end_group(process)
            output.seek(0)
            return code, output.read().decode(errors="replace")

    def fails_without_bugs(self, tests: Sequence[str]) -> list[str]:
        """Tests that fail on this machine as things are: they say nothing about a bug."""
        code, output = self.pytest([*tests, "-o", "cache_dir=.baseline"], BASELINE_LIMIT)
        if code not in (0, FAILED):
            raise SystemExit(f"the tests do not run without a bug (exit code {code}):\n{output[-3000:]}")
        known = self.folder / ".baseline" / "v" / "cache" / "lastfailed"
        return sorted(json.loads(known.read_text())) if code == FAILED else []


def _end_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # and what the tests have started
    except ProcessLookupError:
        pass
    process.wait()


def judge(copy: Copy, bug: Bug, ignored: Sequence[str]) -> Result:
    """Plant one bug and run its tests."""
    began = time.monotonic()
    options = ["-x", "--tb=line", "-p", "no:cacheprovider"]
    for name in ignored:
        options += ["--deselect", name]
    with copy.planted(bug):
        code, output = copy.pytest([*bug.tests, *options], LIMIT)
    status: Status = "error"
    if code is None:
        status = "timeout"
    elif code in (0, FAILED):
        status = "escaped" if code == 0 else "caught"
    lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    detail = lines[0] if lines else output.strip()[-500:]
    return Result(bug.area, bug.name, status, time.monotonic() - began, not bug.escapes, detail)


def judge_all(bugs: Sequence[Bug], workers: int, tests_from: str | None) -> list[Result]:
    """Judge every bug, ``workers`` at a time, each in a copy of its own."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for i in range(workers):
            copies.put(first := Copy(Path(folder) / str(i), tests_from))
        _say("running the tests without a bug")
        ignored = first.fails_without_bugs(sorted({test for bug in bugs for test in bug.tests}))
        for name in ignored:
            _say(f"  left out, as it fails without a bug: {name}")

        def one(numbered: tuple[int, Bug]) -> Result:
            copy = copies.get()
            try:
                result = judge(copy, numbered[1], ignored)
            finally:
                copies.put(copy)
            _say(f"[{numbered[0]:3}/{len(bugs)}] {result.status:8}{result.seconds:6.1f} s  {result.area}: {result.name}")
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
    parser.add_argument("--tests-from", metavar="REF", help="use the tests of this git revision")
    parser.add_argument("--workers", type=int, default=2, help="bugs at a time")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    bugs = [b for b in read_bugs() if options.area in (None, b.area) and (options.only or "") in b.name]
    if problems := stale(bugs):
        _say("\n".join(problems))
        return 1
    results = judge_all(bugs, options.workers, options.tests_from)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        print(report(results))
    return int(any(result.expected and not result.caught for result in results))


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
