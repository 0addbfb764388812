"""Processes of several machines: torch.distributed's gloo.

Nothing is encrypted, and any process that reaches the ports can join: use a private network.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from outrider.errors import EngineDeadError
from outrider_fleet.parallel.messages import FRAME
from outrider_fleet.parallel.rendezvous import Rendezvous

_dist: Any = torch.distributed  # its types say nothing of gloo
_STARTUP = timedelta(minutes=10)  # for all processes to come, and to load
_GATHER = timedelta(minutes=5)  # for the slowest process to reach a gather
_IDLE = timedelta(days=365)  # between two forward passes
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
)


class GlooLink:
    """This process's connections to the others; of the first process as of the rest."""

    threads = None

    def __init__(self, place: Rendezvous) -> None:
        """Waits until all processes have come. Raises EngineDeadError if they do not."""
        self.rank, self.size = place.rank, place.size
        try:
            own = _own_address(place)
            self._store = _store(place)
            self._messages = self._group("messages", own, _IDLE)
            self._data = self._group("data", own, _GATHER)
        except (RuntimeError, OSError) as error:
            where = f"MASTER_ADDR={place.address}, MASTER_PORT={place.port}"
            raise EngineDeadError(f"the {place.size} processes did not meet at {where}: {_line(error)}") from None
        self._callback = _CALLBACK(self._gather)
        self.exchange = _Address(ctypes.cast(self._callback, ctypes.c_void_p).value or 0, 0)
        self._failure = ""

    def _group(self, name: str, address: str, timeout: timedelta) -> Any:
        options = _dist.ProcessGroupGloo._Options()
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
        device = _dist.ProcessGroupGloo.create_device(interface=interface) if interface else None
        options._devices = [device or _dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timeout
        return _dist.ProcessGroupGloo(_dist.PrefixStore(name, self._store), self.rank, self.size, options)

    def _gather(self, context: int | None, own: int, out: int, count: int, first_only: int) -> int:
        """An ``outrider_gather``, called by the native library in the middle of a forward pass."""
        try:
            mine, size = _bytes_at(own, count), self.size
            if not first_only:
                self._data._allgather_base(_bytes_at(out, count * size), mine).wait()
            else:
                parts = [list(_bytes_at(out, count * size).split(count))] if self.rank == 0 else []
                self._data.gather(parts, [mine]).wait()
        except BaseException as error:  # noqa: BLE001, as C would lose the exception, and the pass would go on
            self._failure = _line(error)
            return 1
        return 0

    def send(self, message: bytes) -> None:
        content = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        try:
            self._broadcast(content[: FRAME.size])
            self._broadcast(content[FRAME.size :])
        except RuntimeError as error:
            self._failure = _line(error)
            raise EngineDeadError(self.why_lost()) from None

    def receive(self) -> tuple[bytes, bytes] | None:
        lengths = torch.empty(FRAME.size, dtype=torch.uint8)
        try:
            self._broadcast(lengths)
            text, numbers = FRAME.unpack(lengths.numpy().tobytes())
            content = torch.empty(text + numbers, dtype=torch.uint8)
            self._broadcast(content)
        except RuntimeError:
            return None
        received = content.numpy().tobytes()
        return received[:text], received[text:]

    def _broadcast(self, content: Tensor) -> None:
        if self._messages is None:
            raise RuntimeError("the connections are closed")
        self._messages.broadcast([content]).wait()

    def answer(self, value: Any) -> None:
        self._store.set(f"answer/{self.rank}", json.dumps(value))

    def answers(self) -> list[Any]:
        try:
            return [json.loads(self._store.get(f"answer/{rank}")) for rank in range(1, self.size)]
        except RuntimeError as error:
            raise EngineDeadError(f"a process of {self.size} did not load its share: {_line(error)}") from None

    def why_lost(self) -> str:
        reason = self._failure or "they are out of step"
        return f"a process of {self.size} on another machine is gone ({reason}): restart all, and see what it wrote"

    def close(self) -> None:
        self._messages = self._data = None


@dataclass(frozen=True)
class _Address:
    function: int
    context: int


def _store(place: Rendezvous) -> Any:
    """The first process listens at the address it was given, and at no other."""
    if place.rank:
        return _dist.TCPStore(place.address, place.port, place.size, False, _STARTUP)
    family, *_, where = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen()
        number = listening.detach()
    return _dist.TCPStore(
        place.address, place.port, place.size, True, _STARTUP, wait_for_workers=False, master_listen_fd=number
    )


def _own_address(place: Rendezvous) -> str:
    """The address of this machine from which it reaches the first process."""
    family, *_, where = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        return str(probe.getsockname()[0])


def _bytes_at(address: int, count: int) -> Tensor:
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


def _line(error: BaseException) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:200]
