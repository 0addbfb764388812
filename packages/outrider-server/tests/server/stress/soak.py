"""A server under hundreds of clients, good and bad, while its engine fails now and then.

    python -m tests.server.stress.soak --minutes 60 --clients 200

Afterwards clients and server must agree on what happened, nothing may run or hold a place, an ordinary request must
have the tokens it had, memory must have grown no more than by what it still learns, descriptors and threads as at
the start. Then the engine is ended, and the process is killed, each under load, and a new server must answer the same.
``--json`` prints one JSON line; exit code 1 if anything is amiss.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from tests.server.stress.attack import STALL, end, left, model_of, parser_for
from tests.server.stress.crowd import Seen, crowd, reconcile
from tests.server.stress.process import Process

MODULE = "tests.server.stress.faulty"
SOURCE = ("--extra-source", f"{MODULE}:Fickle")
LIMITS = ("--max-batch-size", "16", "--max-queue", "64", "--scheduling-policy", "priority")
OPTIONS = ("--threads", "1", "--log-level", "warning", *LIMITS)
WARM_UP = 0.25  # of the time
GROWTH = 112 << 20  # bytes by which it may grow after warming up: what is learned, rows never written (reliability.md)
POOL = 32  # threads that asyncio's pool may have; they come with its first uses and stay
SAMPLE = 2.0  # seconds between samples of memory


@contextlib.contextmanager
def sampled(server: Process) -> Iterator[list[int]]:
    """The server's memory, every ``SAMPLE`` seconds meanwhile."""
    samples, done = [server.memory()], threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE):
            samples.append(server.memory())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield samples
    finally:
        done.set()
        sampler.join()


def run(model: str, minutes: float, clients: int, seed: int) -> dict[str, Any]:
    amiss: list[str] = []
    with Process(model, *OPTIONS, *SOURCE, module=MODULE) as server:
        server.wait_ready()
        expected, memory, threads = server.ordinary(), server.memory(), server.threads()
        files = server.descriptors()
        warm = minutes * 60 * WARM_UP
        server.signal(signal.SIGUSR2)  # faults
        asyncio.run(crowd(server.port, clients, warm, seed))
        before = server.settled()
        with server.watched() as waits, sampled(server) as samples:
            threading.Timer((minutes * 60 - warm) / 2, _stop_for_a_moment, [server]).start()
            seen = asyncio.run(crowd(server.port, clients, minutes * 60 - warm, seed + 1))
        server.signal(signal.SIGUSR2)
        remains = left(server, files)
        after, log, last_threads = server.settled(), server.log(), server.threads()
        amiss += reconcile(seen, before, after, failures=True)
        third = max(1, len(samples) // 3)
        early, late = median(samples[:third]), median(samples[-third:])
        wrong = {
            f"left at the end: {remains}": bool(remains),
            "another answer after it": server.ordinary() != expected,
            f"memory grew from {early} to {late} bytes": late > early + GROWTH,
            f"{last_threads} threads, {threads} at the start": last_threads > threads + POOL,
            f"/health took {waits[0]:.1f} s": waits[0] > STALL,
        }
        amiss += [words for words, true in wrong.items() if true]
        amiss += _end_under_load(server, signal.SIGUSR1, 3, clients)
    amiss += _after_a_kill(model, expected, clients)
    return {
        "minutes": minutes,
        "clients": clients,
        "seed": seed,
        "requests": seen.started,
        "answered": {str(status): count for status, count in sorted(seen.answered.items())},
        "left": seen.left,
        "too_slow": seen.slow,
        "cut": seen.cut,
        "broken_streams": seen.broken_streams,
        "raw_connections": seen.raw.connections,
        "sequences_finished": seen.finished,
        "tokens_made": int(after["generation_tokens_total"] - before["generation_tokens_total"]),
        "engine_faults": log.count("a step of the engine failed"),
        "memory_bytes": {"start": memory, "warm": int(early), "end": int(late)},
        "memory_samples": samples[:: max(1, len(samples) // 20)],
        "threads": [threads, last_threads],
        "longest_health_s": round(waits[0], 3),
        "log_bytes": len(log),
        "amiss": amiss,
    }


def _stop_for_a_moment(server: Process) -> None:
    """SIGSTOP and SIGCONT: what waits meanwhile is not lost."""
    server.signal(signal.SIGSTOP)
    time.sleep(0.5)
    server.signal(signal.SIGCONT)


def _end_under_load(server: Process, number: int, code: int, clients: int) -> list[str]:
    """What is wrong with how a server ends on this signal."""

    async def attack() -> Seen:
        asyncio.get_running_loop().call_later(2, server.signal, number)
        return await crowd(server.port, clients, 6)

    asyncio.run(attack())
    found = server.wait(30)
    return [] if found == code else [f"exit code {found} after signal {number}, not {code}"]


def _after_a_kill(model: str, expected: str, clients: int) -> list[str]:
    """What is wrong with a server that begins anew after one was killed."""
    amiss = []
    with Process(model, *OPTIONS, *SOURCE, module=MODULE) as server:
        server.wait_ready()
        amiss += _end_under_load(server, signal.SIGKILL, -signal.SIGKILL, clients)
    with Process(model, *OPTIONS, module="tests.server.stress.impatient") as server:
        server.wait_ready()
        amiss += ["another answer of a new server"] if server.ordinary() != expected else []
    return amiss


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=200)
    args = parser.parse_args()
    with model_of(args) as model:
        end(run(model, args.minutes, args.clients, args.seed), args)


if __name__ == "__main__":
    main()
