"""A real server on a real port, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import httpx

from outrider import LLM
from outrider_server.http.listening import listen
from outrider_server.model_pool import Loader
from outrider_server.models import Models
from outrider_server.run import UvicornServer
from outrider_server.service import Service
from outrider_server.settings import Limits, ServerSettings
from tests.waiting import wait_until as wait_until

LIMITS = {field.name for field in fields(Limits)}


class Live:
    """Use it in ``with``: it listens on a port of its own, and stops at the end."""

    def __init__(
        self, llm: LLM | None, name: str = "tiny", *, loaders: Mapping[str, Loader] | None = None, **settings: Any
    ) -> None:
        """``settings``: of ``ServerSettings`` and ``Limits``.

        ``loaders``: of several models, in place of ``llm``; ``service`` is then that of the first.
        """
        limits = {name: settings.pop(name) for name in LIMITS & settings.keys()}
        self.settings = ServerSettings(**({"port": 0, "drain_timeout": 5.0} | settings), limits=Limits(**limits))
        several = Models.on_demand(self.settings, loaders) if loaders else None
        self.service = Service(self.settings, name) if several is None else several.services[0]
        self._socket = listen(self.settings)
        self.server = UvicornServer(several or Models.of(self.service), self._socket)
        if llm is not None:
            self.service.attach(llm, on_death=self.server.engine_died)
        self.port: int = 0 if self.settings.uds else self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve([self._socket])))

    def __enter__(self) -> Live:
        self._thread.start()
        wait_until(lambda: self.server.started)
        # Without TLS there is nothing to verify, and reading the certificates is most of making a client.
        self.client = httpx.Client(base_url=self.url, timeout=60, verify=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.server.should_exit = self.server.force_exit = True
        self._thread.join(30)
        wait_until(lambda: not self.server.models.is_changing)
        self.server.models.close()

    def post(self, path: str, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        """The answer to a request that must succeed."""
        answer = self.client.post(path, json=body, **options)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The chunks of a stream, which must be framed correctly and end with ``[DONE]``."""
        with self.client.stream("POST", path, json=body | {"stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            return events(answer.iter_text())

    def idle(self) -> bool:
        """Whether nothing runs, waits or holds a place."""
        engine = self.service.engine.llm.engine
        return not engine.busy and self.service.sequences == 0

    def ended(self, reason: str) -> float:
        """How many requests have ended so, as "length" or, where their clients have left, "abort"."""
        return self.metric("request_success_total", finished_reason=reason)

    def metric(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(f"outrider:{name}", labels) or 0.0


def events(pieces: Iterator[str]) -> list[dict[str, Any]]:
    """Parse an event stream strictly: events are one ``data:`` line, comments are skipped, the last is [DONE]."""
    frames = "".join(pieces).split("\n\n")
    assert frames[-1] == ""
    data = [frame.removeprefix("data: ") for frame in frames[:-1] if not frame.startswith(":")]
    assert data[-1] == "[DONE]"
    assert all("\n" not in line for line in data)
    return [json.loads(line) for line in data[:-1]]
