"""A small HTTP client for hundreds at once, that can leave in the middle, dawdle, and only half close."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import h11

PATIENCE = 120.0  # seconds for more of an answer


@dataclass
class Manners:
    """``leave``: seconds after which to go; ``sip``: seconds between reads; ``drip``: seconds between pieces sent;
    ``half``: stop sending once the request is sent.
    """

    leave: float | None = None
    sip: float = 0.0
    drip: float = 0.0
    half: bool = False


POLITE = Manners()


class LeftError(Exception):
    """We went before the answer was complete."""


async def ask(
    port: int, method: str, path: str, body: Any = None, *, key: str | None = None, manners: Manners = POLITE
) -> tuple[int, bytes]:
    """Status and body of one request on a connection of its own.

    Raises LeftError, and OSError or h11.RemoteProtocolError if the server ends the connection before the answer.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(manners.leave):
            return await _exchange(reader, writer, _request(method, path, body, key), manners)
    except TimeoutError:
        if manners.leave is None:
            raise
        raise LeftError from None
    finally:
        writer.close()


def _request(method: str, path: str, body: Any, key: str | None) -> bytes:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(data)}"]
    lines += ["Content-Type: application/json"] if body is not None else []
    lines += [f"Authorization: Bearer {key}"] if key is not None else []
    return "\r\n".join([*lines, "", ""]).encode() + data


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, manners: Manners
) -> tuple[int, bytes]:
    step = max(1, len(data) // 5) if manners.drip else len(data)
    for at in range(0, len(data), step):
        writer.write(data[at : at + step])
        await asyncio.sleep(manners.drip)
    await writer.drain()
    if manners.half:
        writer.write_eof()
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method=data.partition(b" ")[0], target="/", headers=[("Host", "localhost")]))
    parser.send(h11.EndOfMessage())
    status, body = 0, bytearray()
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            async with asyncio.timeout(PATIENCE):
                parser.receive_data(await reader.read(4096 if manners.sip else 1 << 16))
            await asyncio.sleep(manners.sip)
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return status, bytes(body)
        elif isinstance(event, h11.ConnectionClosed):
            raise ConnectionError("closed before the answer")
