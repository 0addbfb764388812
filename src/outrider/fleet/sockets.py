"""Messages between an ingress and replicas on the same machine: frames of JSON over Unix sockets.

A connection carries one call. The first frame has the token of the fleet, without which nothing is read any further::

    ingress  ──►  {"token", "op": "run", ...}
             ◄──  {"i": 0, "steps": [...]}  ...  {"done": true}         closing the connection ends the call

A frame is its length in 4 bytes, then JSON. The sockets lie in a folder that only its owner can enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
from collections.abc import AsyncGenerator

from outrider.fleet.engine_host import EngineHost
from outrider.fleet.replica import ReplicaLostError
from outrider.fleet.wire import Message, decode, encode

MAX_FRAME = 64 << 20  # bytes
PATIENCE = 10.0  # seconds for a replica that is alive to answer what costs it nothing


async def write_frame(writer: asyncio.StreamWriter, message: Message) -> None:
    data = encode(message)
    writer.write(len(data).to_bytes(4, "big") + data)
    await writer.drain()


async def read_frame(reader: asyncio.StreamReader) -> Message:
    """Raises EOFError, ConnectionError, or ValueError for what is no frame."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > MAX_FRAME:
        raise ValueError(f"a frame of {size} bytes is longer than {MAX_FRAME}")
    return decode(await reader.readexactly(size))


class SocketHost:
    """Offers an ``EngineHost`` on a socket, to who knows the token. Until it is loaded, calls wait."""

    def __init__(self, path: str, token: str) -> None:
        self._path, self._token = path, token.encode()
        self.host: asyncio.Future[EngineHost] = asyncio.get_running_loop().create_future()

    async def listen(self) -> asyncio.Server:
        before = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(self._serve, self._path, limit=MAX_FRAME)
        finally:
            os.umask(before)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering: asyncio.Task[None] | None = None
        try:
            message = await asyncio.wait_for(read_frame(reader), PATIENCE)
            if not hmac.compare_digest(str(message.get("token", "")).encode(), self._token):
                return
            answering = asyncio.ensure_future(self._answer(message, writer))
            gone = asyncio.ensure_future(reader.read(1))  # callers send nothing more: this ends when they go
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
        except (EOFError, OSError, ValueError, TimeoutError):
            pass
        finally:
            if answering is not None:
                answering.cancel()
                await asyncio.wait({answering})
            writer.close()

    async def _answer(self, message: Message, writer: asyncio.StreamWriter) -> None:
        host = await asyncio.shield(self.host)
        with contextlib.suppress(OSError):
            if message["op"] == "run":
                async with contextlib.aclosing(host.run(message)) as parts:
                    async for part in parts:
                        await write_frame(writer, part)
                return
            answer: Message = {}
            if message["op"] == "describe":
                answer = host.description()
            elif message["op"] == "status":
                answer = host.status()
            elif message["op"] == "teach":
                host.teach(message)
            await write_frame(writer, answer)


class SocketReplica:
    """The ingress's end; a ``Replica``."""

    def __init__(self, name: str, path: str, token: str) -> None:
        self._name, self._path, self._token = name, path, token

    @property
    def name(self) -> str:
        return self._name

    async def run(self, message: Message) -> AsyncGenerator[Message]:
        try:
            async with self._call({**message, "op": "run"}) as reader:
                while True:
                    part = await read_frame(reader)
                    yield part
                    if "done" in part or "error" in part:
                        return
        except (EOFError, OSError, ValueError) as error:
            raise ReplicaLostError(f"{self._name}: {error or type(error).__name__}") from None

    async def describe(self) -> Message:
        return await self._ask({"op": "describe"})

    async def status(self) -> Message:
        return await self._ask({"op": "status"}, PATIENCE)

    async def teach(self, message: Message) -> None:
        await self._ask({**message, "op": "teach"}, PATIENCE)

    async def _ask(self, message: Message, seconds: float | None = None) -> Message:
        try:
            async with asyncio.timeout(seconds), self._call(message) as reader:
                return await read_frame(reader)
        except (EOFError, OSError, ValueError, TimeoutError) as error:
            raise ReplicaLostError(f"{self._name}: {error or type(error).__name__}") from None

    @contextlib.asynccontextmanager
    async def _call(self, message: Message) -> AsyncGenerator[asyncio.StreamReader]:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=1 << 20)
        try:
            await write_frame(writer, {**message, "token": self._token})
            yield reader
        finally:
            writer.close()
