"""What operating systems do differently: a function for each, so that no other module asks for a system's name."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TextIO

__all__ = [
    "allowed_processors",
    "end_with",
    "free_memory",
    "give_way",
    "limit_process",
    "on_end_signals",
    "own_session",
    "private_file",
    "put_on_disk",
    "raise_open_files",
    "ran_out_of_time",
    "read_ahead",
    "read_at",
    "take_address",
    "total_memory",
    "utf8_output",
    "write_at",
]

_BINARY = getattr(os, "O_BINARY", 0)  # Windows changes the ends of lines otherwise
_MODES = {"w": os.O_TRUNC, "x": os.O_EXCL, "a": os.O_APPEND}
_POSITIONED = hasattr(os, "pread")
_position = threading.Lock()  # of all files, where reading at a place moves it
_NICE = 10  # beside work that takes all processors: a tenth of one
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


# ---- Files ----


def private_file(path: str | Path, mode: Literal["w", "x", "a"]) -> int:
    """A descriptor to write with, of a file that is its owner's alone (Windows: as its folder is). Raises OSError."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | _MODES[mode] | _BINARY, 0o600)


def put_on_disk(path: Path) -> None:
    """Wait until a file's content would survive a power cut. Raises OSError."""
    with path.open("r+b" if sys.platform == "win32" else "rb") as file:  # Windows wants a file that can be written
        os.fsync(file.fileno())


def read_ahead(path: Path) -> None:
    """Ask the system to have a file in memory soon, if it can be asked and there is such a file."""
    if not hasattr(os, "posix_fadvise"):
        return
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(file)


def read_at(file: int, size: int, place: int) -> bytes:
    """At most ``size`` bytes of a binary file from byte ``place`` on; several threads may read at once."""
    if _POSITIONED:
        return os.pread(file, size, place)
    with _position:
        os.lseek(file, place, os.SEEK_SET)
        return os.read(file, size)


def write_at(file: int, data: memoryview, place: int) -> None:
    """Write all of ``data`` from byte ``place`` on; several threads may write at once."""
    while data:
        if _POSITIONED:
            done = os.pwrite(file, data, place)
        else:
            with _position:
                os.lseek(file, place, os.SEEK_SET)
                done = os.write(file, data)
        data, place = data[done:], place + done


# ---- Memory and processors ----


def total_memory() -> int:
    """Bytes of this machine's memory."""
    if sys.platform == "win32":
        from outrider.utils import windows

        return windows.memory()[0]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory() -> int:
    """Bytes that can be used now; on a system that does not say so, half of them all."""
    if sys.platform == "win32":
        from outrider.utils import windows

        return windows.memory()[1]
    return total_memory() // 2


def allowed_processors() -> set[int]:
    """The logical processors that this process may use; on a system that does not say so, all."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


# ---- Processes ----


def own_session() -> dict[str, Any]:
    """Arguments of ``subprocess.Popen`` for a child that this process's Ctrl-C does not reach."""
    if sys.platform == "win32":
        import subprocess

        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}


def give_way() -> None:
    """Let other processes go first from now on."""
    if sys.platform == "win32":
        from outrider.utils import windows

        windows.lower_priority()
    else:
        os.nice(_NICE)


def limit_process(*, memory: int | None = None, seconds: int | None = None) -> None:
    """Have the system end this process beyond ``memory`` bytes or ``seconds`` of processor time, where it can.

    A lower limit of an administrator's stays.
    """
    if sys.platform == "win32":
        from outrider.utils import windows

        windows.limit(memory, seconds)
        return
    import resource

    for kind, most in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CPU, seconds)):
        if most is not None:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def ran_out_of_time(code: int) -> bool:
    """Whether a process that has ended with ``code`` was stopped by its limit of processor time."""
    return sys.platform != "win32" and code == -signal.SIGXCPU


def end_with(parent: int) -> None:
    """End this process as soon as its parent has, whose end of the standard input's pipe is then closed."""
    if sys.platform == "win32":
        from outrider.utils import windows

        threading.Thread(target=windows.exit_after, args=(parent,), daemon=True).start()
        return
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was too quick
            os._exit(0)
    threading.Thread(target=_exit_at_end_of_input, daemon=True).start()


def _exit_at_end_of_input() -> None:
    import select

    poll = select.poll()
    poll.register(0, 0)  # the other side's end is reported without being asked for
    poll.poll()
    os._exit(0)


def raise_open_files(need: int) -> int:
    """Raise the limit of open files to ``need``, as far as it can be; how many there can be, at most ``need``."""
    if sys.platform == "win32":
        return need  # sockets are no files there
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < need:
        soft = need if hard == resource.RLIM_INFINITY else min(need, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return need if soft == resource.RLIM_INFINITY else min(soft, need)


def take_address(listener: socket.socket) -> None:
    """Let a server bind the address of one that has just ended, and nobody the address of one that runs."""
    if sys.platform == "win32":  # SO_REUSEADDR means the opposite there
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def on_end_signals(loop: AbstractEventLoop, handle: Callable[[], None]) -> None:
    """Have the loop call ``handle`` when the process is told to end, or Ctrl-C is pressed. In the main thread alone."""
    if sys.platform == "win32":  # its loops take no signals
        for number in (signal.SIGINT, signal.SIGBREAK, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(handle))
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle)


# ---- Terminal ----


def utf8_output(*streams: TextIO) -> None:
    """Write UTF-8 on Windows too, where a file or pipe would get the code page's few characters, and an error."""
    if sys.platform == "win32":
        for stream in streams:
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(encoding="utf-8")
