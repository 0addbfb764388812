"""A decode method of a test's own runs beside sampled requests, and the engine asks it for nothing but its part."""

from __future__ import annotations

import pytest

from outrider.config import SamplingParams
from outrider.engine.decode_method import DecodeMethod, EngineParts
from outrider.engine.request import Request, StepOutput
from outrider.engine.runner import ScheduledRequest, TargetOutput
from outrider.engine.schedule import ScheduledTokens
from outrider.errors import NumericalError
from outrider.models.toy import TableModel
from outrider.verify.arrays import host
from outrider.verify.draft import EMPTY
from tests.small_engines import engine, request, run

VOCAB = 9


class Unlikeliest(DecodeMethod):
    """Takes the least likely token each time; ``broken`` decisions of the first are not numbers."""

    def __init__(self, broken: int = 0) -> None:
        self.broken = broken
        self.calls: list[str] = []

    def begin(self, request: Request, parts: EngineParts) -> bool:
        self._parts = parts
        self.calls.append("begin")
        return True

    def draft_limit(self, request: Request) -> int:
        return 0

    def schedule(self, part: ScheduledTokens[Request]) -> ScheduledRequest:
        assert part.num_draft_tokens == 0
        return ScheduledRequest(part.request, part.num_tokens, EMPTY)

    def decide(self, scheduled: ScheduledRequest, output: TargetOutput) -> int:
        if self.broken:
            self.broken -= 1
            raise NumericalError("the method refuses")
        return int(host(output.logits)[output.first, : self._parts.vocab_size].argmin())

    def commit(self, scheduled: ScheduledRequest, output: TargetOutput, decision: int | None) -> list[StepOutput]:
        one = scheduled.request
        self._parts.memory.keep(one, scheduled.num_tokens)
        if decision is None:
            return []
        text = one.append(decision)
        return [StepOutput(one.id, decision, text, "target", "none", None, one.finish_reason)]

    def start_over(self, request: Request) -> None:
        self.calls.append("start_over")

    def fail(self, request: Request) -> None:
        self.calls.append(f"fail: {request.error}")

    def finish(self, request: Request) -> None:
        self.calls.append("finish")


def expected(model: TableModel, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model.table[tuple(tokens[-2:])].argmin()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("draft", ["none", "ngram", "model"])
def test_a_method_of_its_own_runs_beside_sampled_requests(draft: str) -> None:
    model, params = TableModel.random(VOCAB, 2, seed=3), SamplingParams(max_tokens=12)
    alone = request([1, 2, 3], params, draft=draft)
    run(engine(model), alone)
    sampled, own = (request([1, 2, 3], params, id=id, draft=draft) for id in ("sampled", "own"))
    own.method = method = Unlikeliest()
    run(engine(model, slots=2), sampled, own)
    assert list(own.output) == expected(model, [1, 2, 3], 12)
    assert list(sampled.output) == list(alone.output)
    assert method.calls == ["begin", "finish"]


def test_a_failing_method_starts_over_once_and_then_fails() -> None:
    model, params = TableModel.random(VOCAB, 2, seed=3), SamplingParams(max_tokens=5)
    once, twice = (request([1, 2, 3], params, id=id) for id in ("once", "twice"))
    once.method, twice.method = first, second = Unlikeliest(broken=1), Unlikeliest(broken=2)
    run(engine(model, slots=2), once, twice)
    assert list(once.output) == expected(model, [1, 2, 3], 5)
    assert first.calls == ["begin", "start_over", "finish"]
    assert second.calls == ["begin", "start_over", "fail: the method refuses", "finish"]
