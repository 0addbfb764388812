"""Work in processes that can be killed: for input that may keep a library busy for hours, or take all memory.

``Children`` is the parent's side. ``main`` is the child's: a line of JSON in, a line of JSON out.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from typing import Any

from outrider.errors import CapacityError
from outrider.utils.system import own_session, ran_out_of_time

STARTUP = 120.0  # seconds for a process to start and read its setup, which takes about one
COMMAND = "from outrider.utils.child_main import main; main()"


class ChildError(Exception):
    """The end of a process that did not answer, in words that follow "it"; it has been killed."""


class ChildCancelledError(Exception):
    """Nobody waits for the answer any more."""


class Cancellation:
    """Lets one thread end another thread's wait. ``with cancellation:`` makes it that of the calling thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kill: Callable[[], None] | None = None
        self.cancelled = False

    def cancel(self) -> None:
        with self._lock:
            self.cancelled = True
            if self._kill is not None:
                self._kill()

    @contextlib.contextmanager
    def killing(self, kill: Callable[[], None]) -> Iterator[None]:
        """While this lasts, ``cancel`` calls ``kill``. Raises ChildCancelledError if it has been."""
        with self._lock:
            if self.cancelled:
                raise ChildCancelledError
            self._kill = kill
        try:
            yield
        except ChildError:
            if not self.cancelled:
                raise
        finally:
            with self._lock:
                self._kill = None
        if self.cancelled:
            raise ChildCancelledError

    def __enter__(self) -> None:
        self._token = _current.set(self)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


class Children:
    """Up to ``count`` processes of one kind, started when first needed, and again after one had to be stopped."""

    def __init__(self, target: str, setup: Any, *, count: int, memory: int, deadline: float, name: str) -> None:
        """
        Args:
            target: ``module:function``, called in the child with ``setup``; it returns the answering function.
            memory: bytes of address space that a child may have.
            deadline: seconds for one answer.
            name: the child's work, for errors: "tries grammars".
        """
        self.deadline = deadline
        self._target, self._setup, self._memory, self._name = target, setup, memory, name
        self._free: list[_Child] = []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(count)

    def ask(self, request: Any) -> Any:
        """A child's answer to ``request``; waits for a child that is free.

        Raises:
            ChildError: the child ran out of time or memory.
            ChildCancelledError: the thread's ``Cancellation`` was called.
            CapacityError: no child can be started.
        """
        data = json.dumps(request).encode() + b"\n"
        with self._places:
            child = self._take()
            try:
                with (_current.get() or Cancellation()).killing(child.interrupt):
                    reply = child.exchange(data, self.deadline)
            except BaseException:
                child.kill()
                raise
            with self._lock:
                self._free.append(child)
        return json.loads(reply)

    def _take(self) -> _Child:
        with self._lock:
            while self._free:
                child = self._free.pop()
                if child.alive:
                    return child
        try:
            return _Child(self._target, self._setup, self._memory, self.deadline)
        except (OSError, ChildError) as error:
            raise CapacityError(f"the process that {self._name} cannot be started: it {error}") from None


class _Child:
    """One process and its pipes."""

    def __init__(self, target: str, setup: Any, memory: int, seconds: float) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", COMMAND, target, str(memory), f"{seconds:g}", str(os.getpid())]
        self._process = _spawner(os.getpid()).submit(_spawn, command, environment).result()
        self.kill = weakref.finalize(self, _end, self._process)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        try:
            self.exchange(json.dumps(setup).encode() + b"\n", STARTUP)
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> bool:
        return self.kill.alive and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def interrupt(self) -> None:
        """Kill the process from another thread. Its pipes stay open: the thread that reads them finds their end."""
        self._process.kill()

    def exchange(self, data: bytes, seconds: float) -> bytes:
        """Send a line and read one. A process that takes too long is killed, which ends the wait for its pipes."""
        late = _Late(seconds, self._process.kill)
        try:
            self._in.write(data)
            self._in.flush()
            reply = self._out.readline()
        except OSError:  # it has ended
            reply = b""
        finally:
            is_late = late.cancel()
        if is_late:
            raise ChildError(_too_long(seconds))
        if not reply.endswith(b"\n"):
            raise ChildError(_cause(self._process, seconds))
        return reply


class _Late:
    """Calls ``kill`` after ``seconds``, unless ``cancel`` comes first."""

    def __init__(self, seconds: float, kill: Callable[[], None]) -> None:
        self._kill, self._lock, self._over, self._called = kill, threading.Lock(), False, False
        self._timer = threading.Timer(seconds, self._call)
        self._timer.daemon = True
        self._timer.start()

    def _call(self) -> None:
        with self._lock:
            if not self._over:
                self._called = True
                self._kill()

    def cancel(self) -> bool:
        """Whether it was called."""
        self._timer.cancel()
        with self._lock:
            self._over = True
            return self._called


def _too_long(seconds: float) -> str:
    return f"takes longer than {seconds:g} seconds"


def _cause(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Why a process has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if ran_out_of_time(process.wait(5)):
            return _too_long(seconds)
    return "takes too much memory"


@cache
def _spawner(pid: int) -> ThreadPoolExecutor:
    """A thread that lives as long as this process does: Linux ends children with the thread that started them."""
    return ThreadPoolExecutor(1, "outrider-spawn")


def _spawn(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        **own_session(),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what it has not read is lost
                pipe.close()
