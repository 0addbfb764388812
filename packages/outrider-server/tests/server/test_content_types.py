"""Bodies as ``curl -d`` sends them, on the paths whose own examples do; and what a web page may send without asking."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.live import Live

CURL = {"User-Agent": "curl/8.5.0", "Accept": "*/*", "Content-Type": "application/x-www-form-urlencoded"}
OPTIONS = {"num_predict": 2}
BODIES: dict[str, dict[str, Any]] = {
    "/api/generate": {"model": "tiny", "prompt": "hello", "stream": False, "options": OPTIONS},
    "/api/chat": {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "stream": False, "options": OPTIONS},
    "/api/show": {"model": "tiny"},
    "/api/embed": {"model": "tiny", "input": "hello"},
    "/api/embeddings": {"model": "tiny", "prompt": "hello"},
    "/api/pull": {"model": "tiny"},
    "/completion": {"prompt": "hello", "n_predict": 2},
    "/completions": {"prompt": "hello", "n_predict": 2},
    "/embeddings": {"input": "hello"},
    "/tokenize": {"content": "hello"},
    "/detokenize": {"tokens": [5]},
    "/apply-template": {"messages": [{"role": "user", "content": "a"}]},
    "/chat/completions/input_tokens": {"messages": [{"role": "user", "content": "a"}]},
}
BROWSERS: list[dict[str, str]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Mode": "no-cors"},
    {"Sec-Fetch-Dest": "empty"},
    {"sec-ch-ua": '"Chromium";v="130"'},
    {"Referer": "https://evil.example/"},
    {"Cookie": "a=b"},
    {"Accept-Language": "en"},
    {"Upgrade-Insecure-Requests": "1"},
    {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"},
]


def send(live: Live, path: str, headers: dict[str, str]) -> httpx.Response:
    """Without the headers that httpx adds by itself."""
    content = json.dumps(BODIES.get(path, {"prompt": "hello", "max_tokens": 2})).encode()
    return httpx.request("POST", live.url + path, content=content, headers=headers, timeout=30)


@pytest.mark.parametrize("path", BODIES)
def test_a_body_of_curl_is_read_as_json(live: Live, path: str) -> None:
    curl = send(live, path, CURL)
    assert curl.status_code == 200, curl.text
    untyped = {name: value for name, value in CURL.items() if name != "Content-Type"}
    assert send(live, path, untyped).status_code == 200
    assert send(live, path, CURL | {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}).is_success
    assert send(live, path, CURL | {"Content-Type": "application/json"}).is_success


@pytest.mark.parametrize("headers", BROWSERS, ids=str)
@pytest.mark.parametrize("path", BODIES)
def test_a_body_that_a_browser_may_have_sent_is_not(live: Live, path: str, headers: dict[str, str]) -> None:
    for kind in (CURL["Content-Type"], ""):
        answer = send(live, path, CURL | {"Content-Type": kind} | headers)
        assert answer.status_code == 415, answer.text
        assert not answer.headers.get("access-control-allow-origin")


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=b", "application/octet-stream", "a, b"])
@pytest.mark.parametrize("path", ["/api/generate", "/completion"])
def test_other_types_are_refused_of_everybody(live: Live, path: str, kind: str) -> None:
    assert send(live, path, CURL | {"Content-Type": kind}).status_code == 415


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_other_paths_say_how_to_send_json(live: Live, path: str) -> None:
    answer = send(live, path, CURL)
    assert answer.status_code == 415
    assert "curl -H 'Content-Type: application/json'" in answer.text


def test_a_form_is_no_json(live: Live) -> None:
    answer = httpx.post(live.url + "/api/generate", data={"model": "tiny", "prompt": "a"}, headers=CURL)
    assert (answer.status_code, "not valid JSON" in answer.text) == (400, True)


@pytest.mark.parametrize("name", ["tiny", "tiny:latest"])
def test_what_is_served_needs_no_pull(live: Live, name: str) -> None:
    answer = live.client.post("/api/pull", json={"name": name})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text == '{"status":"success"}\n'
    assert live.post("/api/pull", {"model": name, "stream": False}) == {"status": "success"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "remedy"),
    [
        ("POST", "/api/pull", {"model": "llama3.2"}, 404, "outrider serve --model llama3.2, or use tiny"),
        ("POST", "/api/pull", {"model": "x" * 200}, 404, "outrider serve --model"),
        ("POST", "/api/pull", {}, 400, "model is missing"),
        ("POST", "/api/push", {"model": "tiny"}, 400, "the hub's own tools"),
        ("POST", "/api/create", {"model": "a", "from": "tiny"}, 400, "outrider serve --models NAME=FOLDER"),
        ("POST", "/api/copy", {"source": "tiny", "destination": "b"}, 400, "outrider serve --models a=M,b=M"),
        ("DELETE", "/api/delete", {"model": "tiny"}, 400, "outrider rm NAME"),
        ("POST", "/api/blobs/sha256:0", {}, 400, "outrider serve --models NAME=FILE"),
    ],
)
def test_what_is_done_to_a_library_has_a_remedy(
    live: Live, method: str, path: str, body: dict[str, Any], status: int, remedy: str
) -> None:
    answer = live.client.request(method, path, json=body)
    assert answer.status_code == status
    assert remedy in answer.json()["error"]
