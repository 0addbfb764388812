"""``make fuzz-fields``: no field of any request, however large, keeps the server's event loop from others.

Each body is sent to a server of this process, whose loop notes how late it wakes from short sleeps. A case that is
late is sent again, and its best time counts: a stall comes back, and another process that wanted the core does not.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from outrider import LLM
from tests.model_folders import model_folder
from tests.server.largest import Case, cases
from tests.server.live import Live

TICK = 0.002  # seconds
TRIES = 4


class LoopLag:
    """The longest time that an event loop was late, since last asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._worst = 0.0
        asyncio.run_coroutine_threadsafe(self._watch(), loop)

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK)
            self._worst = max(self._worst, time.perf_counter() - began - TICK)

    def take(self) -> float:
        worst, self._worst = self._worst, 0.0
        return worst


def send(live: Live, case: Case, timeout: float = 60.0) -> int:
    """The status of the answer; 0 if there is none in time."""
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=timeout)
    try:
        connection.request("POST", case.path, case.body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except TimeoutError:
        return 0
    except (ConnectionError, http.client.HTTPException):  # refused before all of it was read
        return 413
    finally:
        connection.close()


def loop_of(live: Live) -> asyncio.AbstractEventLoop:
    loop = live.server._loop
    assert loop is not None
    return loop


def measured(live: Live, lag: LoopLag, case: Case, most: float) -> tuple[int, float]:
    """Status, and the least of the lags of a few tries."""
    best = float("inf")
    for _ in range(TRIES):
        lag.take()
        status = send(live, case)
        time.sleep(4 * TICK)
        best = min(best, lag.take())
        if best <= most:
            break
    return status, best


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a built-in name or a folder; else a random model of a few kilobytes")
    parser.add_argument("--size", type=int, default=7 << 20, help="bytes of a field")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--lag", type=float, default=0.05, help="seconds that the loop may be late")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or str(model_folder(Path(folder) / "tiny", max_position_embeddings=1024))
        with Live(LLM(model, threads=1), served_model_names=("*",)) as live:
            lag, began = LoopLag(loop_of(live)), time.perf_counter()
            time.sleep(2)
            idle = lag.take()
            statuses: Counter[int] = Counter()
            worst: list[tuple[float, str]] = []
            for case in cases(live.client.get("/openapi.json").json(), given.size):
                if given.only not in str(case):
                    continue
                if time.perf_counter() - began > given.seconds:
                    print("time is up")
                    break
                status, late = measured(live, lag, case, given.lag)
                statuses[status] += 1
                worst.append((late, str(case)))
                if late > given.lag or status >= 500 or status == 0:
                    print(f"{1000 * late:6.0f} ms, status {status}: {case}", flush=True)
    worst.sort(reverse=True)
    failures = sum(late > given.lag for late, _ in worst) + sum(n for s, n in statuses.items() if s >= 500 or s == 0)
    lags = [round(1000 * late, 1) for late, _ in worst]
    summary = {"cases": len(lags), "failures": failures, "idle_ms": round(1000 * idle, 1), "worst_ms": lags[:5]}
    print(json.dumps(summary | {"median_ms": lags[len(lags) // 2], "statuses": dict(statuses)}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
