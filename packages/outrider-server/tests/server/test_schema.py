"""schemathesis: requests made from the OpenAPI document, good and bad, never make the server fail."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from tests.server.live import Live

OPERATIONS = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/audio/translations"),
    ("POST", "/completion"),
    ("POST", "/apply-template"),
    ("POST", "/slots/{slot}"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses"),
    ("POST", "/api/chat"),
    ("POST", "/api/generate"),
    ("POST", "/api/show"),
    ("POST", "/api/pull"),
    ("POST", "/api/embed"),
    ("POST", "/api/embeddings"),
    ("POST", "/v1/embeddings"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("GET", "/api/version"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/props"),
    ("GET", "/slots"),
    ("GET", "/health"),
    ("GET", "/version"),
]
CHECKS = [not_a_server_error, response_schema_conformance, content_type_conformance]


@pytest.fixture(scope="module")
def document(live: Live) -> Any:
    return schemathesis.openapi.from_dict(live.client.get("/openapi.json").json())


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["good", "bad"])
def test_no_request_makes_the_server_fail(
    live: Live, document: Any, method: str, path: str, mode: GenerationMode
) -> None:
    operation = document[path][method]
    if mode is GenerationMode.NEGATIVE and method == "GET":
        pytest.skip("there is nothing to get wrong")

    @given(operation.as_strategy(generation_mode=mode))
    # ``make fuzz-schema`` goes on for as long as it is given.
    @settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def send(case: Any) -> None:
        if isinstance(case.body, dict):
            _keep_short(case.body, path)
        response = case.call(base_url=live.url)
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400 and path != "/health":
            _check_error(path, response.json())

    send()


def _check_error(path: str, answer: Any) -> None:
    """Every API has errors of its own shape."""
    if path.startswith("/v1/messages"):
        assert answer["type"] == "error"
        assert set(answer["error"]) - {"details"} == {"type", "message"}
    elif path.startswith("/api/"):
        assert isinstance(answer["error"], str)
    else:
        assert set(answer["error"]) == {"message", "type", "param", "code"}


def _keep_short(body: dict[str, Any], path: str) -> None:
    """Whole answers (streams have tests of their own) of a few tokens, so that this takes seconds."""
    body.pop("stream", None)
    if path.startswith("/api/"):
        body["stream"] = False
        own = body.get("options")
        body["options"] = {"num_predict": 4} | (own if isinstance(own, dict) else {})
    if path == "/v1/responses":
        body.setdefault("max_output_tokens", 4)
    for name in ("max_tokens", "max_completion_tokens", "n_predict", "max_output_tokens"):
        if isinstance(body.get(name), int):
            body[name] = min(body[name], 8)
    if path == "/v1/chat/completions" and not {"max_tokens", "max_completion_tokens"} & set(body):
        body["max_tokens"] = 4
    if path == "/completion" and body.get("n_predict") in (None, -1):
        body["n_predict"] = 4


def test_streams_are_in_the_document(live: Live) -> None:
    paths = live.client.get("/openapi.json").json()["paths"]
    streaming = {
        path
        for path, methods in paths.items()
        if "text/event-stream" in methods.get("post", {}).get("responses", {}).get("200", {}).get("content", {})
    }
    openai = {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/audio/transcriptions"}
    assert streaming == openai | {"/v1/messages", "/completion"}
    answer = live.client.post("/completion", json={"prompt": "hello", "n_predict": 1, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_the_list_of_operations_is_complete(live: Live) -> None:
    paths = live.client.get("/openapi.json").json()["paths"]
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert found == {*OPERATIONS, ("GET", "/metrics")}
