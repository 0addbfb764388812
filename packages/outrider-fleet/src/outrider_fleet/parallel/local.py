"""Processes of one machine: children of the first one, a pair of sockets to each, and shared memory between all.

Nothing listens anywhere. A process that ends closes its socket, which the others notice wherever they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import weakref
from typing import Any

from outrider.errors import CapacityError, EngineDeadError
from outrider.native.processor import num_threads
from outrider_fleet.parallel.messages import FRAME, frame
from outrider_fleet.parallel.shared import SharedExchange, shared_file

_HANGUP = select.POLLHUP | getattr(select, "POLLRDHUP", 0)
_PATIENCE = 5.0  # seconds for a process to end by itself
_MOMENT = 0.5  # seconds in which the end of a process is noticed
_COMMAND = "from outrider_fleet.parallel.follower import main_local; main_local()"


class LocalLink:
    """The children of the first process."""

    def __init__(self, size: int, threads: int | None) -> None:
        """``threads``: of each process; None: the processors are shared out. Raises CapacityError if none starts."""
        self.size = size
        self.threads = threads or max(1, num_threads() // size)
        file = shared_file(size)
        self.exchange = SharedExchange(file, 0, size)
        self._children = []
        try:
            for rank in range(1, size):
                self._children.append(_RankProcess(file, rank, size))
        except OSError as error:
            _end_all(self._children)
            raise CapacityError(f"a process of tensor_parallel_size={size} cannot be started: {error}") from None
        finally:
            os.close(file)
        self._lost = _Lost()
        self.close = weakref.finalize(self, _end_all, self._children)
        watch = threading.Thread(
            target=_watch, args=(self._children, self.exchange, self._lost), name="outrider-watch", daemon=True
        )
        watch.start()

    def send(self, message: bytes) -> None:
        for child in self._children:
            try:
                child.socket.sendall(message)
            except OSError as error:
                raise EngineDeadError(f"process {child.rank + 1} of {self.size} cannot be reached: {error}") from None

    def answers(self) -> list[Any]:
        found = []
        for child in self._children:
            parts = _receive(child.socket)
            if parts is None:
                raise EngineDeadError(self.why_lost())
            found.append(json.loads(parts[0]))
        return found

    def why_lost(self) -> str:
        if not self._lost.known.wait(_MOMENT):
            return f"the {self.size} processes are out of step: restart"
        child = self._children[self._lost.ranks[0] - 1]
        try:
            status = child.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            how = "does not answer"
        else:
            how = f"was ended by signal {-status}" if status < 0 else f"has ended with status {status}"
        return f"process {child.rank + 1} of {self.size} {how}: restart, and see what it wrote to standard error"


class _Lost:
    """The processes that are gone, once it is known."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.known = threading.Event()


class _RankProcess:
    """One process and the socket to it."""

    def __init__(self, file: int, rank: int, size: int) -> None:
        self.rank = rank
        self.socket, theirs = socket.socketpair()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        arguments = [str(number) for number in (theirs.fileno(), file, rank, size)]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, *arguments],
                pass_fds=(theirs.fileno(), file),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the first process, which ends the others
            )


def _end_all(children: list[_RankProcess]) -> None:
    for child in children:
        with contextlib.suppress(OSError):  # it has ended already
            child.socket.shutdown(socket.SHUT_RDWR)  # to close it is not enough while a thread watches it
        child.socket.close()
    for child in children:
        try:
            child.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def _watch(children: list[_RankProcess], exchange: SharedExchange, lost: _Lost) -> None:
    """Until a child is gone; then the others stop waiting for it."""
    poll = select.poll()
    ranks = {child.socket.fileno(): child.rank for child in children}
    for number in ranks:
        poll.register(number, _HANGUP)
    lost.ranks += [ranks[number] for number, _ in poll.poll()]
    lost.known.set()
    exchange.give_up()


class LocalFollowerLink:
    """The first process, as a child reaches it."""

    def __init__(self, number: int, file: int, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.exchange = SharedExchange(file, rank, size)
        self._socket = socket.socket(fileno=number)
        threading.Thread(target=self._watch, name="outrider-watch", daemon=True).start()

    def _watch(self) -> None:
        """End with the first process, also in the middle of a forward pass."""
        poll = select.poll()
        poll.register(self._socket, _HANGUP)
        poll.poll()
        os._exit(0)

    def receive(self) -> tuple[bytes, bytes] | None:
        return _receive(self._socket)

    def answer(self, value: Any) -> None:
        self._socket.sendall(frame(value))


def _receive(connection: socket.socket) -> tuple[bytes, bytes] | None:
    lengths = _exactly(connection, FRAME.size)
    if lengths is None:
        return None
    text, numbers = FRAME.unpack(lengths)
    content = _exactly(connection, text + numbers)
    return None if content is None else (content[:text], content[text:])


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    content = bytearray()
    while len(content) < size:
        try:
            piece = connection.recv(size - len(content))
        except OSError:
            return None
        if not piece:
            return None
        content += piece
    return bytes(content)
