"""Who reads the log too slowly, or not at all, keeps nobody waiting; and no line of it is a stranger's."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from outrider_server.http.logs import DISTRIBUTIONS, TextFormatter, configure
from outrider_server.settings import ServerSettings
from tests.paths import ROOT

LONG = "x" * 10_000


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Stderr is a small pipe; its other end."""
    monkeypatch.setattr(logging, "raiseExceptions", True)
    kept = {name: vars(logging.getLogger(name)).copy() for name in (*DISTRIBUTIONS, "uvicorn", "asyncio")}
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(writing, "w") as stderr:
        with os.fdopen(reading, "rb", buffering=0):
            monkeypatch.setattr(sys, "stderr", stderr)
            configure(ServerSettings())
            yield reading
        logging.getLogger("outrider").handlers[0].flush()  # the file's number will be another file's
    for name, values in kept.items():
        vars(logging.getLogger(name)).update(values)


def test_a_full_pipe_stops_nobody_and_what_is_left_out_is_counted(pipe: int) -> None:
    log = logging.getLogger("outrider.test")

    def write() -> None:
        for number in range(2000):
            log.info("line %d %s", number, LONG)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(60)
    assert not writing.is_alive()
    received = b""
    while b"left out here" not in received:
        received += os.read(pipe, 65536)
    assert received.startswith(b"20")
    assert b"line 0 " in received


def test_a_log_that_is_read_has_all_lines_in_order(pipe: int) -> None:
    log = logging.getLogger("outrider.test")
    for number in range(30):
        log.info("line %d", number)
    logging.getLogger("outrider").handlers[0].flush()
    lines = os.read(pipe, 65536).decode().splitlines()
    assert [line.rpartition("line ")[2] for line in lines] == [str(number) for number in range(30)]


def test_a_traceback_cannot_fake_a_line() -> None:
    try:
        raise ValueError("it\n2026-01-31 12:00:00 INFO all is well\x1b[2J\r2026\u2028x")
    except ValueError:
        record = logging.LogRecord("outrider.x", logging.ERROR, "f.py", 1, "failed", (), sys.exc_info())
    first, *others = TextFormatter().format(record).split("\n")
    assert first.endswith("ERROR failed")
    assert all(line.startswith("  ") and line.isprintable() for line in others)


def test_no_connection_gets_the_number_of_a_standard_file() -> None:
    """Else what a library or a replica writes there would be sent to a client."""
    code = "import os, socket, sys; from outrider_server.http.logs import DISTRIBUTIONS, configure\n"
    code += "from outrider_server.settings import ServerSettings; configure(ServerSettings())\n"
    code += "os._exit(socket.socket().fileno() < 3)"
    shell = f'exec 0>&- 1>&- 2>&-; exec {sys.executable} -c "$0"'
    assert subprocess.run(["sh", "-c", shell, code], check=False, timeout=60).returncode == 0


def test_every_distribution_logs_there(pipe: int) -> None:
    found = {path.name for path in (ROOT / "packages").glob("*/src/*") if (path / "__init__.py").exists()}
    assert found == set(DISTRIBUTIONS)
    for name in sorted(found):
        logging.getLogger(f"{name}.somewhere").info("from %s", name)
    logging.getLogger("outrider").handlers[0].flush()
    lines = os.read(pipe, 65536).decode().splitlines()
    assert [line.rpartition("from ")[2] for line in lines] == sorted(found)
