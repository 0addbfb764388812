"""``outrider serve`` with a model whose forward passes take a given time: a device that computes beside the CPU.

    python -m benchmarks.paced_server -m stories15m --port 8000 --replicas 2 --fleet processes

Passes compute what they always do, and then wait until ``FIRST + rows * ROW`` seconds have gone by. So several replicas
do not slow each other down, and a busy machine disturbs them little. With ``EVENTS`` in the environment, what happens
to requests is noted in that file (benchmarks.fleet_events).
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from benchmarks import fleet_events
from outrider.llm import LLM
from outrider_lab.cost import LatencyCurve

FIRST, ROW = 0.020, 0.0005
CURVE = LatencyCurve({1: FIRST + ROW, 1024: FIRST + 1024 * ROW})


def pace(llm: LLM) -> None:
    """Make the model's forward passes wait."""
    model: Any = llm.model
    run = model.forward

    def forward(batch: Any, *args: Any, **kwargs: Any) -> Any:
        until = time.perf_counter() + CURVE(len(batch.token_ids))
        output = run(batch, *args, **kwargs)
        time.sleep(max(0.0, until - time.perf_counter()))
        return output

    model.forward = forward


def pace_all() -> None:
    """Every model that is loaded from now on."""
    made = LLM.__init__

    def make(self: LLM, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        pace(self)

    LLM.__init__ = make  # type: ignore[method-assign]


async def _waiting_process() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.paced_server", "replica", stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


def main() -> None:
    pace_all()
    if sys.argv[1:] == ["replica"]:
        from outrider_fleet.replica import main as replica_main

        fleet_events.note_replica()
        sys.exit(replica_main.main())
    from outrider.cli.main import main as run
    from outrider_fleet.ingress import processes

    processes._waiting_process = _waiting_process
    fleet_events.note_ingress()
    sys.argv.insert(1, "serve")
    run()


if __name__ == "__main__":
    main()
