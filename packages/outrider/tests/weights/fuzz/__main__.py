"""Damaged and hostile files of models and of all that drafts: each must be refused in one line, or load and generate.

    python -m tests.weights.fuzz --seconds 600

A sound model is written, one of its files is changed, and a process of its own opens it as a user would. Anything but
an ``OutriderError`` of one line or a text, more than a second of processor time before a refusal, more than a gigabyte,
a crash and a hang are failures: they are printed, and their files kept. Ends with one JSON line; the exit code is 1 if
anything failed. Reproducible by ``--seed``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from outrider.native.processor import set_num_threads

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # this process forks

import transformers  # noqa: F401  (imported once, before forking)

from outrider.errors import OutriderError
from outrider.native.library import library
from outrider.weights.hub.catalog import resolve
from tests.weights.fuzz.kinds import NAMES, Kind, kinds

PATIENCE = 60  # seconds of a case before it counts as hanging; far more than a sound model takes on a busy machine
SLOW = 1.0  # seconds of processor time that a refusal may take
MEMORY = 1 << 30  # bytes that a case may add to what the process had


@dataclass(frozen=True)
class Result:
    """``outcome``: loaded, refused, or what is wrong."""

    outcome: str
    message: str


def attempt(kind: Kind, folder: Path) -> Result:
    """Open ``folder`` in a child of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(kind, folder, writer)
    os.close(writer)
    deadline = time.monotonic() + PATIENCE
    usage = None
    while usage is None and time.monotonic() < deadline:
        pid, status, found = os.wait4(child, os.WNOHANG)
        usage = found if pid else None
        time.sleep(0 if pid else 0.005)
    if usage is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        return Result("hangs", f"more than {PATIENCE} s")
    with os.fdopen(reader, encoding="utf-8", errors="replace") as pipe:
        outcome, _, message = pipe.read().partition(": ")
    seconds, added = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 - _resident()
    if os.WIFSIGNALED(status):
        return Result("crashes", f"signal {os.WTERMSIG(status)}")
    if added > MEMORY:
        return Result("takes memory", f"{added >> 20} MiB, {outcome}: {message}")
    if outcome == "refused" and seconds > SLOW:
        return Result("is slow", f"{seconds:.1f} s, {message}")
    if outcome == "refused" and ("\n" in message or len(message) > 600):
        return Result("says too much", message[:300])
    return Result(outcome, message)


def _child(kind: Kind, folder: Path, writer: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        kind.open(folder)
        said = "loaded: "
    except OutriderError as error:
        said = f"refused: {error}"
    except BaseException as error:  # noqa: BLE001  (all of them are findings)
        where = " < ".join(
            f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[:-5:-1]
        )
        said = f"raises: {type(error).__name__}: {str(error)[:200]} at {where}"
    os.write(writer, said.encode(errors="replace")[:60_000])
    os._exit(0)


def _resident() -> int:
    """Bytes that a fork begins with."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def fuzz(
    seconds: float, count: int | None, seed: int, keep: Path, only: str | None = None
) -> tuple[Counter[str], list[str]]:
    """Outcomes by kind, and a line for each failure. ``keep`` gets the files of those."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    library()  # from the user's cache, before another is used
    with tempfile.TemporaryDirectory() as name:
        os.environ["OUTRIDER_CACHE"] = f"{name}/cache"
        sound = [kind for kind in kinds(Path(name)) if only in (None, kind.name)]
        resolve(str(Path(name) / "gguf" / "m.gguf"))  # imports what converting needs, once
        for kind in sound:
            if (found := attempt(kind, kind.folder)).outcome != "loaded":
                raise SystemExit(f"the sound {kind.name} does not load: {found}")
        stop, number = time.monotonic() + seconds, 0
        while time.monotonic() < stop and (count is None or number < count):
            number += 1
            rng = random.Random(f"{seed} {number}")
            kind = rng.choice(sound)
            file, change = rng.choice(sorted(kind.files.items()))
            case = Path(name) / "case"
            shutil.copytree(kind.folder, case)
            (case / file).write_bytes(change((case / file).read_bytes(), rng))
            found = attempt(kind, case)
            counts[f"{kind.name}/{file} {found.outcome}"] += 1
            if found.outcome not in ("loaded", "refused"):
                failures.append(f"case {number}, {kind.name}/{file} {found.outcome}: {found.message}")
                shutil.copytree(case, keep / f"{seed}-{number}", dirs_exist_ok=True)
            shutil.rmtree(case)
            shutil.rmtree(Path(name) / "cache" / "gguf", ignore_errors=True)
    return counts, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=NAMES, default=None)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz-loaders"), help="where failing files go")
    given = parser.parse_args()
    set_num_threads(1)
    counts, failures = fuzz(given.seconds, given.count, given.seed, given.keep, given.only)
    for line in failures:
        print(line)
    print(json.dumps({"cases": counts.total(), "failures": len(failures), "outcomes": dict(sorted(counts.items()))}))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
