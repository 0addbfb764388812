"""A session of ``benchmarks.gpu``: its options, the time it has, and processes that end when it is over."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE = 30.0  # seconds between the request to end and the end


@dataclass
class Session:
    """What the stages know: options, and the time they have."""

    args: argparse.Namespace
    ends: float  # time.monotonic()

    @property
    def scale(self) -> float:
        return float(self.args.scale)

    @property
    def small(self) -> bool:
        """A rehearsal."""
        return self.scale < 0.01

    @property
    def left(self) -> float:
        """Seconds."""
        return self.ends - time.monotonic()

    @property
    def work(self) -> Path:
        return Path(self.args.work)

    @property
    def out(self) -> Path:
        return Path(self.args.out)

    @property
    def answers(self) -> Path:
        """What heads are trained on."""
        return self.work / "answers.jsonl"

    def tell(self, line: str) -> None:
        print(f"[{max(0.0, self.left):5.0f} s left] {line}", flush=True)

    def write(self, name: str, value: object) -> None:
        (self.out / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _hear_interrupts() -> None:
    """Jobs in the background inherit that interrupts are ignored, by which commands here are asked to end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_all(commands: Sequence[Sequence[str]], session: Session, tick: Callable[[], None] = lambda: None) -> list[int]:
    """Run commands beside one another until all end, or time is up: then they are asked to end. Their exit statuses."""
    here = Path(__file__).parent.parent
    packages = [str(path) for each in sorted(here.glob("packages/*")) for path in (each / "src", each)]
    paths = os.pathsep.join([*packages, str(here), os.environ.get("PYTHONPATH", "")])
    alone = {"OMP_NUM_THREADS": "1"} if len(commands) > 1 else {}
    own = {**os.environ, "PYTHONPATH": paths, **alone}
    running = [subprocess.Popen(c, cwd=here, env=own, preexec_fn=_hear_interrupts) for c in commands]  # noqa: PLW1509
    try:
        told = time.monotonic()
        while any(process.poll() is None for process in running) and session.left > 0:
            time.sleep(0.2)
            if time.monotonic() - told > 15:
                told = time.monotonic()
                tick()
    finally:
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        until = time.monotonic() + GRACE
        for process in running:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return [process.returncode for process in running]
