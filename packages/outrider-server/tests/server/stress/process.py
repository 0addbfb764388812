"""A server in a process of its own: what it answers, what it holds, what it writes to its log."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.model_folders import model_folder

SERVE = "outrider.cli.main"
ORDINARY: dict[str, Any] = {"prompt": "hello world, hello", "max_tokens": 24, "seed": 7, "ignore_eos": True}


class Process:
    """``outrider serve`` with ``options`` on a free port; use it in ``with``, which ends it.

    ``module``: what to run in place of the command line. ``open_files``: its hard limit of descriptors.
    """

    def __init__(self, model: str, *options: str, module: str = SERVE, open_files: int | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        command = [sys.executable, "-m", module, "serve", "-m", model, "--port", str(self.port), *options]

        def limit() -> None:
            if open_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))

        self._process = subprocess.Popen(command, stderr=self._log, preexec_fn=limit)  # noqa: PLW1509  before threads
        self.pid = self._process.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if error is not None:
            print(f"the server's log ends:\n{self.log()[-5000:]}", file=sys.stderr)
        self._log.close()

    def wait_ready(self, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        with httpx.Client(base_url=self.url, verify=False) as client:
            while time.monotonic() < end and self._process.poll() is None:
                try:
                    if client.get("/health").status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
        raise SystemExit(f"the server did not come up:\n{self.log()[-2000:]}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, seconds: float = 60) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = 60) -> int:
        return self._process.wait(seconds)

    def log(self) -> str:
        """All that it has written so far."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def ordinary(self) -> str:
        """The text of the answer to a request that must always have the same."""
        answer = httpx.post(f"{self.url}/v1/completions", json=ORDINARY, timeout=120)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    def metrics(self) -> dict[str, float]:
        return metrics(self.url)

    def settled(self, seconds: float = 60) -> dict[str, float]:
        """The metrics once nothing runs or waits any more."""
        end = time.monotonic() + seconds
        while True:
            found = self.metrics()
            if not (found["num_requests_running"] or found["num_requests_waiting"]) or time.monotonic() > end:
                return found
            time.sleep(0.1)

    def memory(self) -> int:
        """Bytes of resident memory."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def descriptors(self) -> Counter[str]:
        return open_files(str(self.pid))

    def _denied(self) -> Counter[Path]:
        """Seconds for which each thread of ours and of the server was ready to run and had no processor."""
        found: Counter[Path] = Counter()
        for path in (*Path("/proc/self/task").glob("*/schedstat"), *Path(f"/proc/{self.pid}/task").glob("*/schedstat")):
            with suppress(OSError):  # a thread that has just ended
                found[path] = int(path.read_text().split()[1]) / 1e9  # type: ignore[assignment]
        return found

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        """Ask for ``/health`` ten times a second meanwhile; the longest wait, in seconds, is then in the list.

        The time for which a processor was denied to us or to the server is taken off: the machine may have other work.
        """
        waits, done = [0.0], threading.Event()

        def watch() -> None:
            with httpx.Client(timeout=60) as client:
                while not done.wait(0.1):
                    began, denied = time.monotonic(), self._denied()
                    try:
                        client.get(f"{self.url}/health")
                    except httpx.TransportError:  # its connection gave way to others, or was idle for too long
                        continue
                    grown = self._denied() - denied  # a thread that ended meanwhile counts nothing
                    waits[0] = max(waits[0], time.monotonic() - began - sum(grown.values()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield waits
        finally:
            done.set()
            watcher.join()


def open_files(pid: str) -> Counter[str]:
    """Descriptors by what they are: a path, ``socket``, ``pipe``."""
    found: Counter[str] = Counter()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found[os.readlink(path).partition(":[")[0]] += 1
    return found


def metrics(url: str) -> dict[str, float]:
    """Every sample of a server, summed over its labels; and requests by status, as ``status:200``."""
    sums: Counter[str] = Counter()
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=30).text):
        for sample in family.samples:
            sums[sample.name.removeprefix("outrider:")] += sample.value  # type: ignore[assignment]
            if sample.name == "outrider:http_requests_total":
                sums[f"status:{sample.labels['status']}"] += sample.value  # type: ignore[assignment]
    return dict(sums)


@contextmanager
def toy_model() -> Iterator[str]:
    """The folder of a random model of two layers, which is made for the time."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(model_folder(Path(folder) / "tiny", max_position_embeddings=1024))
