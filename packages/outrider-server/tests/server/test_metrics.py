"""What Prometheus is told, and whether it adds up; the dashboard; the OpenAPI document."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from outrider import LLM, SpeculationParams
from outrider_fleet.ingress.metrics import FleetMetrics
from outrider_fleet.ingress.pool import ReplicaPool
from outrider_fleet.ingress.routing import RoundRobinRouter
from outrider_server.openai.schema.speculation import NAMED_HERE, SpeculationOptions
from tests.paths import ROOT
from tests.server.conftest import load
from tests.server.live import Live, wait_until

PATH = "/v1/completions"
DASHBOARD = ROOT / "docs" / "grafana" / "outrider.json"


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return load(folder)


def test_names_under_vllms_prefix(llm: LLM) -> None:
    with Live(llm, metrics_prefix="vllm") as server:
        server.post(PATH, {"prompt": [5, 6, 7], "max_tokens": 3})
        families = list(text_string_to_metric_families(server.client.get("/metrics").text))
    assert {family.name.partition(":")[0] for family in families} == {"vllm"}
    samples = [sample for family in families for sample in family.samples]
    assert {sample.labels["model_name"] for sample in samples} == {"tiny"}
    found = {sample.name for sample in samples}
    histograms = ["time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_prefill_time"]
    histograms += ["request_time_per_output_token", "time_per_output_token"]
    assert {f"vllm:{name}_seconds_bucket" for name in histograms} <= found
    assert {"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_requests_running"} <= found


def test_counters_agree_with_what_clients_saw(llm: LLM) -> None:
    with Live(llm) as server:
        engine_tokens = server.metric("generation_tokens_total")
        prompt = made = drafted = accepted = 0
        positions = [0] * 4
        for i, draft in enumerate(["ngram", "lookup", "ngram", "none"]):
            body = {"prompt": [5, 6, 7] * 3, "max_tokens": 30, "seed": i, "temperature": 0, "ignore_eos": True}
            body |= {"logit_bias": {"5": 30}, "speculation": {"draft": draft, "spec_length": 4}}
            answer = server.post(PATH, body)
            prompt += answer["usage"]["prompt_tokens"]
            made += answer["usage"]["completion_tokens"]
            told = answer["metrics"]["speculative_decoding"]
            drafted += told["num_draft_tokens"]
            accepted += told["num_accepted_draft_tokens"]
            for count, times in enumerate(told["acceptance_histogram"]):
                for depth in range(count):
                    positions[depth] += times
        server.client.post(PATH, json={"prompt": "x", "n": 0})
        # What a client has may be counted a moment later.
        wait_until(
            lambda: server.idle() and server.metric("http_requests_total", method="POST", path=PATH, status="400") > 0
        )
        assert server.metric("request_success_total", finished_reason="length") == 4
        assert server.metric("prompt_tokens_total") == prompt
        assert server.metric("generation_tokens_total") - engine_tokens == made
        assert server.metric("time_to_first_token_seconds_count") == 4
        assert server.metric("inter_token_latency_seconds_count") >= 60
        assert server.metric("http_requests_total", method="POST", path=PATH, status="200") == 4
        assert server.metric("http_requests_total", method="POST", path=PATH, status="400") == 1
        name = "spec_decode_num_{}_total"
        both = ("ngram", "lookup")
        assert sum(server.metric(name.format("draft_tokens"), source=s) for s in both) == drafted
        assert sum(server.metric(name.format("accepted_tokens"), source=s) for s in both) == accepted > 20
        for depth in range(4):
            found = [server.metric(name.format("accepted_tokens_per_pos"), source=s, position=str(depth)) for s in both]
            assert sum(found) == positions[depth]
        assert server.metric("kv_cache_usage_perc") < 1
        assert server.metric("num_requests_running") == 0


def test_the_dashboard_shows_metrics_that_exist(live: Live) -> None:
    live.post(PATH, {"prompt": [5, 6, 5, 6, 5, 6], "max_tokens": 20, "logit_bias": {"5": 90}, "temperature": 0})
    fleet = CollectorRegistry()
    FleetMetrics(fleet).watch(ReplicaPool(RoundRobinRouter()))
    text = live.client.get("/metrics").text + generate_latest(fleet).decode()
    families = list(text_string_to_metric_families(text))
    known = {sample.name for family in families for sample in family.samples}
    known |= {f.name + ("_total" if f.type == "counter" else "") for f in families}  # those without replicas too
    known |= {"outrider:requests_rejected_total", "outrider:slow_readers_dropped_total"}
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    named = {panel["title"]: set(re.findall(r"outrider:\w+", str(panel["targets"]))) for panel in panels}
    assert {title: names - known for title, names in named.items()} == {title: set() for title in named}
    assert [title for title, names in named.items() if not names] == [], "panels that show nothing of ours"
    assert all(target["expr"] and target["refId"] for panel in panels for target in panel["targets"])
    assert len(set().union(*named.values())) >= 15
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_every_way_to_draft_can_be_asked_for() -> None:
    own = {field.name for field in fields(SpeculationParams)} - NAMED_HERE
    asked = set(SpeculationOptions.model_fields)
    assert asked == own | {"draft", "method", "spec_length", "num_speculative_tokens", "verifier"}


def test_the_document_describes_every_field(live: Live) -> None:
    document = live.client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for name in ("CompletionRequest", "ChatRequest"):
        assert schemas[name]["additionalProperties"] is False
        assert {"seed", "speculation", "stream", "logit_bias"} <= set(schemas[name]["properties"])
    for path in (PATH, "/v1/chat/completions", "/tokenize", "/detokenize"):
        route = document["paths"][path]["post"]
        assert route["requestBody"]["required"]
        assert {"200", "400", "401", "429", "503"} <= set(route["responses"])
