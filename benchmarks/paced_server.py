"""``outrider serve`` with a model whose forward passes take a given time: a device that computes beside the CPU.

    python -m benchmarks.paced_server -m stories15m --port 8000

Passes compute what they always do, and then wait until ``FIRST + rows * ROW`` seconds have gone by. So several servers
do not slow each other down, and a busy machine disturbs them little.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from outrider.analysis.cost import LatencyCurve
from outrider.llm import LLM

FIRST, ROW = 0.040, 0.001
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


def main() -> None:
    made = LLM.__init__

    def make(self: LLM, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        pace(self)

    LLM.__init__ = make  # type: ignore[method-assign]
    from outrider.cli.main import main as run

    sys.argv.insert(1, "serve")
    run()


if __name__ == "__main__":
    main()
