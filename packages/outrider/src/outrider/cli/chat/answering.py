"""One answer, step by step, which Ctrl-C stops between two steps of the engine."""

from __future__ import annotations

from collections.abc import Iterator

from outrider.engine.engine import Engine
from outrider.engine.request import Request, StepOutput
from outrider.utils.interrupt import CtrlC


def steps_of(engine: Engine, request: Request, stop: CtrlC) -> Iterator[list[StepOutput]]:
    """The outputs of each engine step for a lone request, until it ends or is stopped.

    Raises:
        OutriderError: the request failed.
    """
    engine.add(request)
    try:
        while request.finish_reason is None and request.error is None and not stop.pressed:
            yield engine.step()
    finally:
        engine.abort(request.id)
    if request.error is not None:
        raise request.error
