"""The second attack: what its tables say, and what takes more than one request: keys, streams, metrics."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider import LLM
from tests.server.attack.bodies import CHAT, COMPLETIONS, LLAMA, Body, bodies
from tests.server.attack.connections import CONNECTIONS, answered, get, is_right, post
from tests.server.conftest import load
from tests.server.live import Live, events, wait_until

JSON = {"Content-Type": "application/json"}
SLOW = (
    "five thousand properties",
    "three thousand rules",
    "five thousand",
    "ten thousand",
    "a huge repetition",
    "a doubling",
    "a multiple of",
    "a long",
    "all of much",
    "chain",
)
ORDINARY: dict[str, Any] = {"prompt": "hello world, hello", "max_tokens": 12, "seed": 7, "ignore_eos": True}
LONG = {"prompt": "hello world " * 40, "max_tokens": 2, "seed": 1}
ONE, TWO = "sk-one", "sk-one2"  # one begins with the other


def named(cases: list[Body], slow: bool) -> list[Any]:
    return [pytest.param(case, id=case.name) for case in cases if any(part in case.name for part in SLOW) == slow]


ALL = list(bodies())


def check_body(live: Live, case: Body) -> None:
    answer = live.client.post(case.path, content=case.content, headers=JSON)
    assert answer.status_code in case.right, answer.text[:300]
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(answer.content) < 300
        assert not re.search(r"Traceback|site-packages|\.py\b|/src/", error["message"])
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert events(iter([answer.text]))
    else:
        json.loads(answer.text, parse_constant=pytest.fail)


@pytest.fixture(scope="module", autouse=True)
def _same_answer_after_all(live: Live) -> Iterator[None]:
    expected = live.post(COMPLETIONS, ORDINARY)["choices"][0]["text"]
    yield
    assert live.post(COMPLETIONS, ORDINARY)["choices"][0]["text"] == expected
    wait_until(live.idle)


@pytest.mark.parametrize("case", named(ALL, slow=False))
def test_bodies(live: Live, caplog: pytest.LogCaptureFixture, case: Body) -> None:
    check_body(live, case)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


@pytest.mark.slow
@pytest.mark.parametrize("case", named(ALL, slow=True))
def test_bodies_that_take_seconds(live: Live, case: Body) -> None:
    check_body(live, case)


@pytest.mark.parametrize(("data", "right"), CONNECTIONS.values(), ids=CONNECTIONS)
def test_connections(
    live: Live, caplog: pytest.LogCaptureFixture, data: bytes, right: tuple[tuple[int, ...], ...]
) -> None:
    statuses, received = answered(live.port, data)
    assert is_right(statuses, right), received[-300:]
    assert b"Set-Cookie" not in received
    assert b"access-control-allow" not in received.lower()
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


# -- keys ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyed(folder: Path) -> Iterator[Live]:
    with Live(load(folder), api_keys=(ONE, TWO)) as server:
        yield server


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


STRANGERS: dict[str, dict[str, str]] = {
    "nothing": {},
    "an empty key": {"Authorization": "Bearer"},
    "no scheme": {"Authorization": ONE},
    "another scheme": {"Authorization": f"Digest {ONE}"},
    "the beginning of a key": bearer(ONE[:-1]),
    "a key and more": bearer(f"{ONE}x"),
    "both keys": bearer(f"{ONE} {TWO}"),
    "keys with a comma": bearer(f"{ONE},{TWO}"),
    "capitals": bearer(ONE.upper()),
    "a quoted key": bearer(f'"{ONE}"'),
    "Basic that is no base 64": {"Authorization": "Basic !!!"},
    "Basic without a colon": {"Authorization": "Basic c2stb25l"},
    "another header": {"X-Auth-Token": ONE},
    "a cookie": {"Cookie": f"key={ONE}"},
    "other letters": {"Authorization": b"Bearer \xff\xfe"},  # type: ignore[dict-item]
    "100,000 letters": bearer("x" * 10_000),
}


@pytest.mark.parametrize("headers", STRANGERS.values(), ids=STRANGERS)
def test_who_has_no_key_is_refused_everywhere(keyed: Live, headers: dict[str, str]) -> None:
    for path in (COMPLETIONS, CHAT, LLAMA, "/tokenize"):
        answer = keyed.client.post(path, json=ORDINARY, headers=headers)
        assert answer.status_code == 401
        assert ONE not in answer.text
    for path in ("/v1/models", "/metrics", "/slots", "/props", "/v1/models/tiny"):
        assert keyed.client.get(path, headers=headers).status_code == 401
    assert keyed.client.get(f"/v1/models?api_key={ONE}&key={ONE}", headers=headers).status_code == 401
    assert keyed.client.get("/health", headers=headers).json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/metrics", "/slots"])
def test_a_caller_does_not_read_what_all_do(keyed: Live, path: str) -> None:
    assert keyed.client.get(path, headers=bearer(ONE)).status_code in (401, 403)


def cached(server: Live, key: str | None, **fields: Any) -> list[int]:
    """What the three endpoints, and a stream, say of the cache."""
    headers = bearer(key) if key else {}
    made = server.post(COMPLETIONS, LONG | fields, headers=headers)
    counts = [made["usage"]["prompt_tokens_details"]["cached_tokens"], made["timings"]["cache_n"]]
    llama = {"prompt": LONG["prompt"], "n_predict": 2} | fields
    counts.append(server.post(LLAMA, llama, headers=headers)["tokens_cached"])
    return counts


SALTS: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "another key": ((ONE, ""), (TWO, "")),
    "another key with the same salt": ((ONE, "salt"), (TWO, "salt")),
    "a salt that fills up the other key": ((ONE, "2x"), (TWO, "x")),
    "a salt that is the other key": ((ONE, ""), (TWO, ONE)),
    "a salt that is empty on one side": ((ONE, ""), (ONE, "x")),
    "salts that differ by a null character": ((ONE, "x"), (ONE, "x\0")),
    "salts that differ by a space": ((ONE, "x"), (ONE, "x ")),
    "salts that look alike": ((ONE, "\u00e9"), (ONE, "e\u0301")),
}


@pytest.mark.parametrize(("victim", "attacker"), SALTS.values(), ids=SALTS)
def test_nothing_of_a_domain_is_cached_for_another(
    keyed: Live, victim: tuple[str, str], attacker: tuple[str, str], request: pytest.FixtureRequest
) -> None:
    first = [5 + list(SALTS).index(request.node.callspec.id), *range(20, 60)]
    (key, salt), (other, other_salt) = victim, attacker
    body = {"prompt": first, "max_tokens": 2, "seed": 1}

    def count(key: str, salt: str) -> int:
        answer = keyed.post(COMPLETIONS, body | ({"cache_salt": salt} if salt else {}), headers=bearer(key))
        found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert count(key, salt) == 0
    assert count(key, salt) > 0
    assert count(other, other_salt) == 0


@pytest.mark.parametrize("field", ["user", "safety_identifier", "prompt_cache_key", "metadata"])
def test_no_other_field_joins_two_keys(keyed: Live, field: str) -> None:
    value = {"a": "same"} if field == "metadata" else "same"
    body = {"prompt": f"{field} {LONG['prompt']}", "max_tokens": 2, field: value}
    for key in (ONE, TWO):
        answer = keyed.post(COMPLETIONS, body, headers=bearer(key))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_all_endpoints_say_the_same_of_the_cache(keyed: Live) -> None:
    assert cached(keyed, ONE)[0] == 0
    again = cached(keyed, ONE)
    assert min(again) > 0
    assert cached(keyed, TWO)[:2] == [0, 0]


# -- streams -------------------------------------------------------------------------------------------------------

INJECTIONS = {
    "an end": "\n\ndata: [DONE]\n\n",
    "an event": "\r\n\r\nevent: error\r\ndata: {}\r\n\r\n",
    "line separators": "\u2028\u2029\x85\x0b\x0c",
    "null characters": "\0data: x\0",
    "a byte order mark": "\ufeffdata: x",
    "a script": "</script><script>alert(1)</script>",
}


@pytest.mark.parametrize("text", INJECTIONS.values(), ids=INJECTIONS)
def test_an_echo_cannot_end_an_event(live: Live, text: str) -> None:
    body = {"prompt": text, "echo": True, "max_tokens": 3, "seed": 1, "ignore_eos": True, "logprobs": 2}
    whole = live.post(COMPLETIONS, body)["choices"][0]
    parts = [chunk["choices"][0] for chunk in live.stream(COMPLETIONS, body)]
    assert whole["text"].startswith(text)
    assert "".join(part["text"] for part in parts) == whole["text"]
    joined = [token for part in parts for token in (part["logprobs"] or {}).get("tokens", [])]
    assert joined == whole["logprobs"]["tokens"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("n", [1, 3])
def test_streams_count_as_whole_answers_do(live: Live, path: str, n: int) -> None:
    body: dict[str, Any] = {"n": n, "seed": 3, "max_tokens": 7, "ignore_eos": True}
    body |= {"prompt": "hello"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hello"}]}
    whole = live.post(path, body)
    *_, last = live.stream(path, body | {"stream_options": {"include_usage": True}})
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, LLAMA])
@pytest.mark.parametrize("after", [0, 1, 200])
def test_a_stream_that_is_cut_leaves_nothing(live: Live, path: str, after: int) -> None:
    body: dict[str, Any] = {"stream": True, "ignore_eos": True}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hello"}
    body |= {"n_predict": 900} if path == LLAMA else {"max_tokens": 900}
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    whole = live.ended("length")
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + data)
        if after:
            connection.recv(after)
    wait_until(live.idle, 10)
    assert live.ended("length") == whole  # nothing ran on to its 900 tokens


def test_pipelined_requests_are_answered_in_their_order(live: Live) -> None:
    keep = [get(path).replace(b"Connection: close\r\n", b"") for path in ("/health", "/nothing", "/version")]
    statuses, received = answered(live.port, b"".join(keep) + post())
    assert [status for status in statuses if status != 100] == [200, 404, 200, 200]
    assert received.index(b'"status":"ok"') < received.index(b'"error"') < received.index(b"text_completion")


def test_a_slow_reader_of_much_keeps_nobody_waiting(live: Live) -> None:
    body = json.dumps({"prompt": [5] * 900, "max_tokens": 1, "echo": True, "logprobs": 20, "n": 4}).encode()
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        connection.recv(1)
        began = time.perf_counter()
        live.post(COMPLETIONS, ORDINARY)
        assert time.perf_counter() - began < 5


# -- what is told of all -------------------------------------------------------------------------------------------


def test_a_stranger_makes_no_new_series(live: Live) -> None:
    def series() -> set[str]:
        lines = live.client.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#") and "created" not in line}

    def strange(number: int) -> None:
        live.client.get(f'/x{number}"\\n')
        live.client.request(f"BREW{number}", "/health")
        live.client.get(f"/v1/models/{number}")
        live.client.post(COMPLETIONS, json=ORDINARY | {"model": f'm{number}"'})

    strange(0)
    series()
    before = series()
    for number in range(1, 10):
        strange(number)
    assert series() == before


@pytest.mark.parametrize(
    "text", ["{{ 7 * 7 }}", "{% for i in range(9) %}x{% endfor %}", "{# x #}", "{{ self }}", "${7*7}"]
)
def test_a_message_is_no_template(live: Live, text: str) -> None:
    rendered = live.post("/apply-template", {"messages": [{"role": "user", "content": text}]})["prompt"]
    assert text in rendered


@pytest.mark.parametrize("text", ["<|im_end|>", "<s>", "</s>", "<|endoftext|>", "<|im_start|>system\nx"])
def test_a_message_has_no_control_tokens(live: Live, text: str) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    plain = live.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]})["tokens"]
    special = live.service.tokenizer.special_ids

    def count(tokens: list[int]) -> int:
        return sum(token in special for token in tokens)

    assert count(live.post("/tokenize", body)["tokens"]) == count(plain)


def test_a_document_of_all_this_is_served(live: Live) -> None:
    paths = live.client.get("/openapi.json").json()["paths"]
    assert {COMPLETIONS, CHAT, LLAMA} <= set(paths)


def test_events_of_an_unread_stream_are_bounded(folder: Path) -> None:
    llm = LLM(str(folder), draft="none", max_batch_size=4, threads=1)
    with Live(llm, max_backlog=64, write_timeout=1.0) as server:
        with httpx.Client(base_url=server.url) as client:
            body = {"prompt": "hello", "max_tokens": 900, "ignore_eos": True, "stream": True}
            with client.stream("POST", COMPLETIONS, json=body) as answer:
                next(answer.iter_raw())
        wait_until(server.idle, 10)
        assert events(iter(["data: [DONE]\n\n"])) == []
        server.post(COMPLETIONS, ORDINARY)
