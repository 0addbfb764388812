"""``outrider serve`` with an engine that fails now and then between two SIGUSR2, and ends on SIGUSR1: for the soak.

python -m tests.server.stress.faulty serve -m MODEL
"""

from __future__ import annotations

import random
import signal
import time
from typing import Any

from outrider.cli.main import main
from outrider.drafters import EMPTY, Draft, RequestView, SingleRequestDrafter
from outrider.engine.engine import Engine
from tests.server.stress import impatient

EVERY = 2.0  # seconds from one failed step to the next, at least


class Fickle(SingleRequestDrafter):
    """A source that raises, or proposes what is no token."""

    def draft(self, request: RequestView, budget: int) -> Draft:
        if budget and random.random() < 0.02:
            raise RuntimeError("a fault of the soak's")
        if budget and random.random() < 0.02:
            return Draft.chain([10**9], source="fickle")
        return Draft.chain(request.tokens[-1:], source="fickle") if budget else EMPTY


class Faults:
    """Lets the scoring of a step raise while ``on``, every so many seconds, and end the engine once ``ending``.

    A request must have ended since the last failure: an engine that serves none between three of them is given up.
    """

    def __init__(self, every: float = EVERY) -> None:
        self.on = self.ending = False
        self.count = 0
        self._every, self._due, self._served = every, 0.0, True

    def install(self, engine: type[Any]) -> None:
        """Make all engines of this class fail."""
        real_score, real_step = engine._score, engine.step

        def score(engine: Any, *args: Any) -> Any:
            self._maybe_fail()
            return real_score(engine, *args)

        def step(engine: Any) -> Any:
            outputs = real_step(engine)
            self._served |= any(output.finish_reason is not None for output in outputs)
            return outputs

        engine._score, engine.step = score, step

    def _maybe_fail(self) -> None:
        if self.ending:
            raise SystemExit("the soak ends this engine")
        if self.on and self._served and time.monotonic() > self._due:
            self._due, self._served = time.monotonic() + self._every, False
            self.count += 1
            raise RuntimeError("a fault of the soak's")


def by_signal(faults: Faults) -> None:
    """SIGUSR1 ends the engine, SIGUSR2 turns faults on and off."""

    def end(*_: object) -> None:
        faults.ending = True

    def switch(*_: object) -> None:
        faults.on = not faults.on

    signal.signal(signal.SIGUSR1, end)
    signal.signal(signal.SIGUSR2, switch)


if __name__ == "__main__":
    impatient.install()
    by_signal(made := Faults())
    made.install(Engine)
    main()
