"""Parts that break, one at a time: the output is unchanged, or there is a clean error and the next request works."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.verify.draft import Draft
from tests.server.conftest import load
from tests.server.live import Live, events, wait_until

PATH = "/v1/completions"
ASK: dict[str, Any] = {"prompt": [5, 6, 7, 5, 6, 7, 5, 6], "max_tokens": 20, "seed": 1, "temperature": 0.2}
ASK |= {"ignore_eos": True, "logit_bias": {"5": 30}}


@pytest.fixture
def server(folder: Path) -> Iterator[Live]:
    with Live(load(folder)) as live:
        yield live


def parts(server: Live) -> Any:
    return server.service.engine.llm.engine


def raising(error: BaseException, *, after: int = 0, times: int = 1 << 30) -> Any:
    """A function that raises: from call ``after`` on, so often."""
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if after < calls <= after + times:
            raise error
        return call.real(*args, **kwargs)  # type: ignore[attr-defined]

    return call


def replaced(owner: Any, name: str, call: Any) -> None:
    call.real = getattr(owner, name)
    setattr(owner, name, call)


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), RecursionError()]
)
def test_a_source_that_fails_costs_speed_only(server: Live, error: BaseException) -> None:
    plain = server.post(PATH, ASK | {"speculation": "off"})
    drafter = server.service.engine.llm.drafters["ngram"]
    replaced(drafter, "propose", raising(error, after=2))
    answer = server.post(PATH, ASK)
    assert answer["choices"][0]["text"] == plain["choices"][0]["text"]
    assert server.idle()


def test_a_source_that_lies_costs_speed_only(server: Live) -> None:
    plain = server.post(PATH, ASK | {"speculation": "off"})

    def lie(requests: Sequence[Any], budgets: Sequence[int]) -> list[Draft]:
        return [Draft.chain([10**6] * budget) for budget in budgets]

    drafter: Any = server.service.engine.llm.drafters["ngram"]
    drafter.propose = lie
    assert server.post(PATH, ASK)["choices"][0]["text"] == plain["choices"][0]["text"]


def test_nan_is_a_clean_error_for_the_request_it_hits(server: Live) -> None:
    engine = parts(server)
    plain = server.post(PATH, ASK)["choices"]

    class Broken:
        def __init__(self, model: Any) -> None:
            self.config, self.forward_real = model.config, model.forward

        def forward(self, batch: Any, cache: Any) -> Any:
            output = self.forward_real(batch, cache)
            output.logits[:] = float("nan")
            return output

    real, engine._model = engine._model, Broken(engine._model)
    answer = server.client.post(PATH, json=ASK)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "numerical_error"
    with server.client.stream("POST", PATH, json=ASK | {"stream": True}) as streamed:
        assert streamed.status_code == 500
    engine._model = real
    assert server.post(PATH, ASK)["choices"] == plain
    wait_until(server.idle)


def test_a_step_that_fails_ends_its_requests_and_the_next_are_served(server: Live) -> None:
    plain = server.post(PATH, ASK)["choices"]
    replaced(parts(server), "_score", raising(RuntimeError("secret /path"), times=1))
    answer = server.client.post(PATH, json=ASK)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text
    assert server.post(PATH, ASK)["choices"] == plain
    replaced(parts(server), "_commit", raising(RuntimeError("later"), after=5, times=1))
    with server.client.stream("POST", PATH, json=ASK | {"stream": True, "speculation": "off"}) as streamed:
        assert streamed.status_code == 200
        chunks = events(streamed.iter_text())
    assert chunks[-1]["error"]["type"] == "server_error"
    assert server.post(PATH, ASK)["choices"] == plain
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize("error", [SystemExit(1), RuntimeError("again and again")])
def test_a_dead_engine_is_said_and_ends_the_process(server: Live, error: BaseException) -> None:
    """A step that always fails is given up after three requests; one that ends the thread, at once."""
    replaced(parts(server), "step", raising(error))
    codes = []
    while server.service.state != "dead":
        codes.append(server.client.post(PATH, json=ASK).status_code)
        assert len(codes) < 5
        time.sleep(0.05)
    assert set(codes) <= {500, 503}
    health = server.client.get("/health")
    assert health.status_code == 503
    assert health.json() == {"status": "dead"}
    answer = server.client.post(PATH, json=ASK)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_dead"
    wait_until(lambda: server.server.should_exit, 10)


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_clock_that_jumps_moves_nobody(server: Live, jump: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines, keep-alive and times of requests come from a clock that only goes on."""
    plain = server.post(PATH, ASK)["choices"]
    real, jumps = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + jumps[0])
    body = ASK | {"stream": True, "stream_options": {"include_usage": True}}
    with server.client.stream("POST", PATH, json=body) as streamed:
        pieces = streamed.iter_text()
        first = next(pieces)
        jumps[0] = jump
        chunks = events(iter([first, *pieces]))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == plain[0]["text"]
    assert server.post(PATH, ASK)["choices"] == plain
    assert 0 < server.metric("e2e_request_latency_seconds_sum") < 600
    wait_until(server.idle)


def test_a_log_that_cannot_be_written_stops_nobody(server: Live) -> None:
    class Full(logging.StreamHandler[Any]):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                raise OSError(28, "No space left on device")
            except OSError:
                self.handleError(record)

    logger, before = logging.getLogger("outrider"), logging.raiseExceptions
    handler = Full()
    logger.addHandler(handler)
    logging.raiseExceptions = False
    try:
        assert server.post(PATH, ASK)["choices"]
    finally:
        logger.removeHandler(handler)
        logging.raiseExceptions = before
