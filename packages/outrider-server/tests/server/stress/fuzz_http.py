"""HTTP as no client speaks it, 48 connections at a time: does the server stay sound?

    python -m tests.server.stress.fuzz_http --seconds 600

Connections come from ``http_grammar``. There must be no 5xx but a 503 with ``Retry-After``, no traceback in the log, no
wait of over a second for ``/health``, and no token that differs in an ordinary request afterwards. In the end nothing
runs and no connection is left. ``--json`` prints one JSON line; exit code 1 if anything is amiss. Each connection can
be made again from ``--seed`` and its number.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.server.stress.attack import arguments, end, model_of, under_attack
from tests.server.stress.http_grammar import Connection, connection

AT_ONCE, ROUND = 48, 1000  # connections; after each round comes an ordinary request
PATIENCE = 3.0  # seconds to wait for more of an answer
MODULE = "tests.server.stress.impatient"
OPTIONS = ("--threads", "1", "--max-tokens", "64")
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n((?:[^\r\n]+\r\n)*)")


@dataclass
class Found:
    connections: int = 0
    sent: int = 0  # bytes
    statuses: Counter[int] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    amiss: list[str] = field(default_factory=list)

    def answers(self, number: int, made: Connection, received: bytes) -> None:
        for match in STATUS.finditer(received):
            status = int(match[1])
            self.statuses[status] += 1
            if status >= 500 and not (status == 503 and b"retry-after" in match[2].lower()):
                self.amiss.append(f"connection {number}: {status} for {made.sent[:300]!r}")


async def attack(port: int, number: int, made: Connection, found: Found) -> None:
    """One connection, from its first byte to its end."""
    received = bytearray()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        found.endings["refused"] += 1
        return
    reading = asyncio.ensure_future(_read(reader, received, made.ending))
    try:
        for pause, piece in made.pieces:
            await asyncio.sleep(pause)
            writer.write(piece)
            async with asyncio.timeout(PATIENCE):
                await writer.drain()
        if made.ending == "half":
            writer.write_eof()
        if made.ending == "reset":
            writer.transport.abort()
        if made.ending in ("read", "half"):
            await reading
    except OSError:  # it was disconnected, or the server reads no more
        found.endings["cut off"] += 1
    finally:
        reading.cancel()
        writer.close()
        await asyncio.wait([reading])
    found.connections += 1
    found.sent += len(made.sent)
    found.endings[made.ending] += 1
    found.answers(number, made, bytes(received))


async def _read(reader: asyncio.StreamReader, received: bytearray, ending: str) -> None:
    if ending == "silent":
        return
    try:
        while True:
            async with asyncio.timeout(PATIENCE):
                if not (piece := await reader.read(65536)):
                    return
            received += piece
    except OSError:  # TimeoutError included
        return


async def round_of(port: int, seed: int, first: int, found: Found) -> None:
    """``ROUND`` connections, ``AT_ONCE`` of them at any time."""
    numbers = iter(range(first, first + ROUND))

    async def one_after_another() -> None:
        for number in numbers:
            await attack(port, number, connection(random.Random(f"{seed}:{number}")), found)

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))


def run(model: str, seconds: float, seed: int) -> dict[str, Any]:
    found, until, first = Found(), time.monotonic() + seconds, 0
    with under_attack(model, *OPTIONS, amiss=found.amiss, module=MODULE) as attacked:
        while time.monotonic() < until:
            asyncio.run(round_of(attacked.server.port, seed, first, found))
            first += ROUND
            attacked.check(f"connection {first}")
    return {
        "seconds": round(seconds),
        "seed": seed,
        "connections": found.connections,
        "bytes_sent": found.sent,
        "answers": {str(status): count for status, count in sorted(found.statuses.items())},
        "endings": dict(found.endings),
        **attacked.report,
        "amiss": found.amiss,
    }


def main() -> None:
    args = arguments(__doc__)
    with model_of(args) as model:
        end(run(model, args.seconds, args.seed), args)


if __name__ == "__main__":
    main()
