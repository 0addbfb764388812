"""No caller keeps the others waiting: with grammars, with large bodies, with drafts, with a chat template."""

from __future__ import annotations

import asyncio
import gc
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM
from outrider_server import generation
from outrider_server.http.errors import to_long_json
from tests.model_folders import model_folder
from tests.server.conftest import load
from tests.server.fuzz_fields import LoopLag, loop_of, measured
from tests.server.largest import cases
from tests.server.live import Live, wait_until
from tests.server.stress.process import Process
from tests.tokenizer.vocabularies import byte_level

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PLAIN = {"prompt": "hello", "max_tokens": 2}
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{{ messages }}"
BOMBS = {
    "a loop": LOOP,
    "a power": "{{ 10 ** (10 ** 9) ** messages | length }}",
    "a long text": "{{ ('a' * messages | length) * 10 ** 11 }}",
    "a doubling text": "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "more than the context": "{{ messages[0].content * 100000 }}",
}
TOO_SLOW = 1.0  # seconds: what is measured are milliseconds, but tests run on busy machines


def endless(number: int) -> dict[str, Any]:
    """A grammar that nobody has seen the end of."""
    schema = {"type": "integer", "multipleOf": 99999989 - 2 * number}
    return PLAIN | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


@pytest.fixture
def server(folder: Path) -> Iterator[Live]:
    with Live(load(folder)) as live:
        yield live


def test_grammars_that_never_compile_hold_up_nobody_and_end_with_their_clients(server: Live) -> None:
    hostile = [asked(server.port, COMPLETIONS, endless(number)) for number in range(14)]
    time.sleep(0.5)
    began = time.perf_counter()
    server.post(COMPLETIONS, PLAIN)
    assert time.perf_counter() - began < 5  # a place in a queue behind one of them takes ten
    assert not any(_arrived(connection) for connection in hostile)
    for connection in hostile:
        connection.close()
    wait_until(server.idle, 5)
    server.post(COMPLETIONS, PLAIN | {"structured_outputs": {"regex": "ab"}})  # there is a place for it


def asked(port: int, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent, and nothing read."""
    connection = socket.create_connection(("127.0.0.1", port))
    text = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
    return connection


def _arrived(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False


def test_the_time_for_a_request_covers_its_grammar(folder: Path) -> None:
    with Live(load(folder), request_timeout=1.0) as server:
        answer = server.client.post(COMPLETIONS, json=endless(0))
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "timeout"
        wait_until(server.idle, 5)


def test_answers_with_many_alternatives_are_not_written_on_the_loop(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that end in one step would keep it together; here by its own processor time, turn by turn."""
    turns: list[float] = []
    run_once = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def timed(loop: asyncio.BaseEventLoop) -> None:
        began = time.thread_time()
        run_once(loop)
        turns.append(time.thread_time() - began)

    body = {"prompt": "hello", "max_tokens": 256, "ignore_eos": True, "logprobs": 14, "n": 4}
    live.post(COMPLETIONS, body)  # what comes once
    monkeypatch.setattr(asyncio.BaseEventLoop, "_run_once", timed)
    gc.collect()
    gc.freeze()  # as a server does when it has loaded
    answer = live.post(COMPLETIONS, body)
    assert len(answer["choices"][3]["logprobs"]["top_logprobs"]) == 256
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: live.post(COMPLETIONS, body | {"n": 1}), range(4)))
    assert [len(a["choices"][0]["logprobs"]["top_logprobs"]) for a in answers] == [256] * 4
    gc.unfreeze()
    assert max(turns) < 0.03


def test_a_long_answer_is_written_on_a_thread(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def noted(value: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return to_long_json(value)

    monkeypatch.setattr(generation, "to_long_json", noted)
    live.post(COMPLETIONS, {"prompt": "hello", "max_tokens": 32, "ignore_eos": True, "logprobs": 14})
    assert [name.startswith("outrider-writing answers") for name in threads] == [True]


def test_requests_for_the_same_new_grammar_share_its_compilation(live: Live) -> None:
    form = PLAIN | {"max_tokens": 9, "structured_outputs": {"regex": "[ab]{3}same"}}
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: live.client.post(COMPLETIONS, json=form).status_code, range(20)))
    assert set(answers) == {200}


@pytest.mark.slow
def test_many_new_grammars_at_once_wait_for_their_turn(folder: Path) -> None:
    """As many as there is room for sequences; more are told to come again, as without grammars."""
    forms = [PLAIN | {"structured_outputs": {"regex": f"[ab]{{{2 + i}}}turn"}} for i in range(32)]
    with Live(load(folder), max_queue=28) as server:  # and four that run
        lag = LoopLag(loop_of(server))
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda form: server.client.post(COMPLETIONS, json=form).status_code, forms))
        assert answers == [200] * 32
        assert lag.take() < TOO_SLOW
        held = [asked(server.port, COMPLETIONS, endless(number)) for number in range(33)]
        refused, *_ = select.select(held, [], [], 5)
        assert [b" 429 " in connection.recv(200) for connection in refused] == [True]
        for connection in held:
            connection.close()
        wait_until(server.idle, 10)


def test_no_field_stops_the_event_loop(live: Live) -> None:
    """Some of the bodies of ``make fuzz-fields``, of a megabyte each at most.

    A case that is late is sent again, and its best time counts: a stall comes back.
    """
    lag = LoopLag(loop_of(live))
    slow, failed = [], []
    own = (case for case in cases(live.client.get("/openapi.json").json(), 1 << 20) if "." not in case.field)
    for case in islice(own, 0, None, 141):
        status, late = measured(live, lag, case, TOO_SLOW)
        if late > TOO_SLOW:
            slow.append(str(case))
        if status >= 500 or status == 0:
            failed.append(f"{status} {case}")
    assert slow == []
    assert failed == []


@pytest.mark.parametrize("body", [
    {"prompt": [1.5] * 250_000},
    {"prompt": "x", "stop": "x" * (1 << 20)},
])  # fmt: skip
def test_a_wrong_body_is_refused_at_its_first_fault(live: Live, body: dict[str, Any]) -> None:
    lag, data = LoopLag(loop_of(live)), json.dumps(body).encode()
    began = time.perf_counter()
    answer = live.client.post(COMPLETIONS, content=data, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert lag.take() < TOO_SLOW
    assert time.perf_counter() - began < 3 * TOO_SLOW
    assert len(answer.content) < 400


def chatting(tmp_path: Path, template: str) -> LLM:
    folder = model_folder(tmp_path, max_position_embeddings=256)
    byte_level(folder, chat_template=template)
    return LLM(str(folder), threads=1)


@pytest.mark.parametrize("name", BOMBS)
def test_a_chat_template_that_never_ends_or_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from outrider.tokenizer import chat_template

    monkeypatch.setattr(chat_template._CHILDREN, "deadline", 0.5)
    with Live(chatting(tmp_path, BOMBS[name])) as server:
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        answer = server.client.post(CHAT, json=body)
        assert answer.status_code in (400, 500)
        assert "chat template" in answer.json()["error"]["message"]
        server.post(COMPLETIONS, PLAIN)


def test_sigterm_ends_a_server_whose_chat_template_loops(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, max_position_embeddings=256)
    byte_level(folder, chat_template=LOOP)
    with Process(str(folder), "--threads", "1", "--draft", "none", "--drain-timeout", "1") as server:
        server.wait_ready()
        with asked(server.port, CHAT, {"messages": [{"role": "user", "content": "hello"}]}):
            time.sleep(0.5)
            assert server.stop(20) == 0
