"""Many conversations at once: a finished turn queues the conversation's next one, so the engine never waits."""

from __future__ import annotations

from collections.abc import Callable

from outrider.engine.request import Request
from outrider.llm import LLM
from outrider_train.answers.script import Ask, Conversation, Script


def converse(
    llm: LLM,
    begin: Callable[[], tuple[int, Script] | None],
    finished: Callable[[int, Conversation], None],
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run the scripts that ``begin`` returns, one per free place of the engine, until none is left or ``stop``.

    ``begin`` is called whenever a place is free. After None, it is called again once a script has finished.
    ``finished`` gets the number and the conversation of each script, in the order in which scripts end.

    Raises:
        OutriderError: a request failed, for example because the model's logits are not finite.
    """
    running: dict[str, tuple[int, Script, Request, Ask]] = {}

    def advance(number: int, script: Script, last: Request | None) -> None:
        try:
            ask = next(script) if last is None else script.send(last)
        except StopIteration as end:
            finished(number, end.value)
            return
        request = llm.request(list(ask.ids), ask.params)
        llm.engine.add(request)
        running[request.id] = number, script, request, ask

    try:
        while not stop():
            while len(running) < llm.config.max_batch_size and (found := begin()) is not None:
                advance(*found, None)
            if not running:
                return
            llm.engine.step()
            for number, script, request, ask in list(running.values()):
                if request.error is not None:
                    raise request.error
                in_vain = request.finish_reason is None and ask.in_vain(request.output)
                if in_vain:
                    llm.engine.abort(request.id)
                if in_vain or request.finish_reason is not None:
                    del running[request.id]
                    advance(number, script, request)
    finally:
        for request_id in running:
            llm.engine.abort(request_id)
