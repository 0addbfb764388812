"""Messages between an ingress and replicas on the same machine: frames of JSON over Unix sockets.

A connection carries one call. The first frame has the token of the fleet, without which nothing is read any further::

    ingress  ──►  {"token", "op": "run", ...}
             ◄──  {"i": 0, "steps": [...]}  ...  {"done": true}         closing the connection ends the call

A frame is its length in 4 bytes, then JSON. The sockets lie in a folder that only its owner can enter.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import logging
import os
from collections.abc import AsyncGenerator

from outrider.errors import InvalidRequestError
from outrider_fleet.messages.replica import ReplicaLostError
from outrider_fleet.messages.wire import Message, decode, encode, error_message
from outrider_fleet.replica.engine_host import EngineHost

logger = logging.getLogger(__name__)

MAX_FRAME = 64 << 20  # bytes
WAITING = 4096  # calls that a replica has not looked at yet
SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN}
PAUSE = 0.05  # seconds after one of these
PATIENCE = 10.0  # seconds for a live replica to answer a call that costs it nothing


async def write_frame(writer: asyncio.StreamWriter, message: Message) -> None:
    """Raises InvalidRequestError, and sends nothing, for a message that is too long to be read."""
    data = encode(message)
    if len(data) > MAX_FRAME:
        raise InvalidRequestError(
            f"a message of {len(data)} bytes is longer than {MAX_FRAME}: ask for less in one request"
        )
    writer.write(len(data).to_bytes(4, "big") + data)
    await writer.drain()


async def read_frame(reader: asyncio.StreamReader) -> Message:
    """Raises EOFError, ConnectionError, or ValueError for bytes that are no frame."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > MAX_FRAME:
        raise ValueError(f"a frame of {size} bytes is longer than {MAX_FRAME}")
    return decode(await reader.readexactly(size))


class SocketHost:
    """Offers an ``EngineHost`` on a socket to callers with the token. Until it is loaded, calls wait."""

    def __init__(self, path: str, token: str) -> None:
        self._path, self._token = path, token.encode()
        self.host: asyncio.Future[EngineHost] = asyncio.get_running_loop().create_future()

    async def listen(self) -> asyncio.Server:
        before = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(self._serve, self._path, limit=MAX_FRAME, backlog=WAITING)
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
                await asyncio.gather(answering, return_exceptions=True)
            writer.close()

    async def _answer(self, message: Message, writer: asyncio.StreamWriter) -> None:
        host = await asyncio.shield(self.host)
        with contextlib.suppress(OSError):
            if message["op"] == "run":
                try:
                    async with contextlib.aclosing(host.run(message)) as parts:
                        async for part in parts:
                            await write_frame(writer, part)
                except InvalidRequestError as error:
                    await write_frame(writer, {"error": error_message(error)})
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
        except InvalidRequestError:
            raise
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
            async with self._call(message, seconds) as reader, asyncio.timeout(seconds):
                return await read_frame(reader)
        except (EOFError, OSError, ValueError, TimeoutError) as error:
            raise ReplicaLostError(f"{self._name}: {error or type(error).__name__}") from None

    @contextlib.asynccontextmanager
    async def _call(self, message: Message, seconds: float | None = None) -> AsyncGenerator[asyncio.StreamReader]:
        reader, writer = await self._connected()
        try:
            async with asyncio.timeout(seconds):
                await write_frame(writer, {**message, "token": self._token})
            yield reader
        finally:
            writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Waits while this process is short of descriptors or memory, which says nothing of the replica."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path, limit=1 << 20)
            except OSError as error:
                if error.errno not in SHORTAGES:
                    raise
                logger.warning("a call to a replica waits: %s", error.strerror)
            else:
                if writer.get_extra_info("peername") is not None:
                    return reader, writer
                writer.close()  # its queue is full, for which asyncio has no error
            await asyncio.sleep(PAUSE)
