"""schemathesis: requests made from the OpenAPI document, good and bad, never make the server fail."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from tests.server.live import Live


@pytest.fixture
def document(live: Live) -> Any:
    return schemathesis.openapi.from_dict(live.client.get("/openapi.json").json())


schema = schemathesis.pytest.from_fixture("document")


@schema.exclude(path="/metrics").parametrize()
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_makes_the_server_fail(case: Any, live: Live) -> None:
    if isinstance(case.body, dict):
        case.body.pop("stream", None)  # streams have tests of their own, and another content type
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(case.body.get(name), int):
                case.body[name] = min(case.body[name], 8)
        if "messages" in case.body and "max_tokens" not in case.body:
            case.body["max_tokens"] = 4
    response = case.call(base_url=live.url)
    case.validate_response(response, checks=[not_a_server_error, response_schema_conformance, content_type_conformance])
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
