"""Spans of a request across ingress, replica and steps; nothing is needed where they are not asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from outrider import SamplingParams
from outrider_fleet import tracing
from outrider_fleet.ingress.fleet_engine import FleetEngine
from outrider_fleet.ingress.front import Front
from outrider_fleet.ingress.metrics import FleetMetrics
from outrider_fleet.ingress.pool import ReplicaPool
from outrider_fleet.ingress.routing import RoundRobinRouter
from tests.fleet.local import LocalReplica, load_hosts
from tests.model_folders import model_folder


@pytest.fixture
def spans() -> Iterator[Any]:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider.get_tracer("test"))
    yield exporter
    tracing.use(None)


def test_a_request_that_moves_is_one_trace(spans: Any, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "tiny", max_position_embeddings=256)
    host = load_hosts(folder, 1, draft="none")[0]

    async def serve() -> None:
        pool = ReplicaPool(RoundRobinRouter())
        replicas = [LocalReplica(host, "r0", 5), LocalReplica(host, "r1")]
        for each in replicas:
            pool.add(each)
        while len(pool.members) < 2:
            await asyncio.sleep(0.001)
        front = Front(str(folder), host.description())
        engine = FleetEngine(front, pool, FleetMetrics(CollectorRegistry()))
        await engine.generate("hello", SamplingParams(max_tokens=12, ignore_eos=True))
        pool.close()

    asyncio.run(serve())
    host.close()
    found = spans.get_finished_spans()
    request = next(span for span in found if span.name == "outrider.request")
    assert {span.context.trace_id for span in found} == {request.context.trace_id}
    assert [event.name for event in request.events] == ["replica", "resume", "replica"]
    assert request.attributes["gen_ai.usage.output_tokens"] == 12
    served = [span for span in found if span.name == "outrider.replica"]
    assert [span.parent.span_id for span in served] == [request.context.span_id] * 2
    steps = [span for span in found if span.name == "outrider.step"]
    assert {span.parent.span_id for span in steps} == {span.context.span_id for span in served}
