"""What callers may do is the operator's choice: priorities, lossy verifiers, figures of all; and nobody is starved."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider import LLM
from outrider.engine.engine import Engine
from outrider.engine.request import Request, StepOutput
from outrider_server.http.context import Callers
from tests.server.conftest import load
from tests.server.live import Live, wait_until

COMPLETIONS = "/v1/completions"
ALL = {
    COMPLETIONS: {"prompt": "hello", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    "/completion": {"prompt": "hello", "n_predict": 2},
}
JSON = {"Content-Type": "application/json"}
ONE, OTHER, WATCHER = "sk-one", "sk-other", "sk-watcher"


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    """Lent to one server after another."""
    return load(folder)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", ALL)
def test_priorities_are_refused_unless_the_operator_lets_callers_set_them(live: Live, llm: LLM, path: str) -> None:
    answer = live.client.post(path, json=ALL[path] | {"priority": -5})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "priority"
    assert "--scheduling-policy priority" in answer.json()["error"]["message"]
    assert live.client.post(path, json=ALL[path] | {"priority": 0}).status_code == 200
    with Live(llm, scheduling_policy="priority") as server:
        assert server.client.post(path, json=ALL[path] | {"priority": -5}).status_code == 200


@pytest.mark.parametrize("path", ALL)
@pytest.mark.parametrize("verifier", ["lenient", "typical"])
def test_lossy_verifiers_are_refused_unless_the_operator_allows_them(
    live: Live, llm: LLM, path: str, verifier: str
) -> None:
    body = ALL[path] | {"speculation": {"verifier": verifier}}
    answer = live.client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "speculation.verifier"
    assert "--allow-lossy" in answer.json()["error"]["message"]
    assert verifier not in live.client.get("/v1/models").json()["data"][0]["speculation"]["verifiers"]
    with Live(llm, allow_lossy=True) as server:
        assert server.client.post(path, json=body).status_code == 200
        assert verifier in server.client.get("/v1/models").json()["data"][0]["speculation"]["verifiers"]


def test_the_operator_s_own_lossy_verifier_is_for_all_but_not_for_them_to_change(folder: Path) -> None:
    with Live(LLM(str(folder), verifier="lenient", lenience=0.5, threads=1)) as server:

        def status(**speculation: Any) -> int:
            return server.client.post(COMPLETIONS, json=ALL[COMPLETIONS] | {"speculation": speculation}).status_code

        assert status(draft="ngram") == 200
        assert status(lenience=0.1) == 400
        assert status(verifier="matching", lenience=None) == 200


def test_drafts_cannot_be_made_to_be_the_output(llm: LLM) -> None:
    with Live(llm, allow_lossy=True) as server:
        for options in ({"lenience": 1e-300}, {"verifier": "typical", "posterior_threshold": 1e-300}):
            body = ALL[COMPLETIONS] | {"speculation": {"verifier": "lenient"} | options}
            answer = server.client.post(COMPLETIONS, json=body)
            assert answer.status_code == 400
            assert "use a number from 0.1" in answer.text or "use a number from 0.01" in answer.text


@pytest.mark.parametrize("path", ["/metrics", "/slots"])
def test_figures_of_all_callers_are_not_for_each_of_them(llm: LLM, path: str) -> None:
    def status(server: Live, key: str) -> int:
        return server.client.get(path, headers=bearer(key)).status_code

    with Live(llm, api_keys=(ONE, OTHER)) as server:
        assert status(server, ONE) == 403
        assert server.client.get(path, headers=bearer(ONE)).json()["error"]["code"] == "metrics_key_needed"
    with Live(llm, api_keys=(ONE, OTHER), metrics_key=WATCHER) as server:
        assert (status(server, ONE), status(server, WATCHER)) == (403, 200)
        assert server.client.get("/v1/models", headers=bearer(WATCHER)).status_code == 401
        assert server.client.post(COMPLETIONS, json=ALL[COMPLETIONS], headers=bearer(WATCHER)).status_code == 401
        assert server.client.get(f"{path}/", headers=bearer(WATCHER)).status_code == 401
    with Live(llm, api_keys=(ONE,)) as server:
        assert status(server, ONE) == 200
    with Live(llm, api_keys=(ONE, OTHER), share_across_keys=True) as server:
        assert status(server, ONE) == 200
    with Live(llm, metrics_key=WATCHER) as server:  # no other keys: everything else is open
        assert (status(server, ONE), status(server, WATCHER)) == (403, 200)
        assert server.client.get("/v1/models").status_code == 200


def test_names_of_callers_tell_nothing_and_are_new_in_each_process() -> None:
    first, second = Callers(share_across_keys=False), Callers(share_across_keys=False)
    tenant = first.tenant(ONE.encode())
    assert tenant == first.tenant(ONE.encode()) != second.tenant(ONE.encode())
    assert ONE not in tenant
    domains = {first.domain(t, salt) for t in (tenant, first.tenant(OTHER.encode()), "") for salt in ("", "a", tenant)}
    assert len(domains) == 9
    shared = Callers(share_across_keys=True)
    assert shared.domain("one", "a") == shared.domain("other", "a") != shared.domain("one", "b")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host": "0.0.0.0"}, "no API keys"),
        ({"api_keys": (ONE, OTHER), "share_across_keys": True}, "--share-across-keys"),
        ({"host": "0.0.0.0", "api_keys": (ONE,)}, None),
        ({}, None),
    ],
)
def test_the_log_says_where_callers_are_not_apart(
    settings: dict[str, Any], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="outrider"), Live(None, **settings):
        pass
    found = [record.message for record in caplog.records if record.name.endswith("http.context")]
    assert len(found) == (said is not None)
    assert all(str(said) in message for message in found)


def test_a_full_queue_of_one_key_leaves_another_s_empty(llm: LLM) -> None:
    with Live(llm, api_keys=(ONE, OTHER), max_queue=2) as server:
        crowd = Crowd(server, ONE, 6, max_tokens=900)
        full = server.client.post(COMPLETIONS, json=ALL[COMPLETIONS], headers=bearer(ONE))
        assert full.status_code == 429
        assert full.json()["error"]["message"].startswith("6 sequences")
        answer = server.client.post(COMPLETIONS, json=ALL[COMPLETIONS], headers=bearer(OTHER))
        assert answer.status_code == 200
        crowd.leave()
        wait_until(server.idle)


def count_steps(engine: Engine, crowd: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts, in place, the steps from the arrival to the end of each request that has not the crowd's priority."""
    add, step, asked, counts = engine.add, engine.step, dict[str, int](), list[int]()

    def counted_add(request: Request) -> None:
        add(request)
        if request.priority != crowd:
            asked[request.id] = engine.stats.steps

    def counted_step() -> list[StepOutput]:
        outputs = step()
        for output in outputs:
            if output.finish_reason is not None and output.request_id in asked:
                counts.append(engine.stats.steps - asked.pop(output.request_id))
        return outputs

    monkeypatch.setattr(engine, "add", counted_add)
    monkeypatch.setattr(engine, "step", counted_step)
    return counts


def test_nobody_starves_behind_a_crowd_with_the_highest_priority(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 clients that ask for endless answers and come again, whatever key another has: it is answered."""
    first = -(2**31)
    with Live(llm, api_keys=(ONE, OTHER), scheduling_policy="priority", max_queue=64) as server:
        crowd = Crowd(server, ONE, 24, priority=first)
        counts = count_steps(server.service.engine.llm.engine, first, monkeypatch)
        for key, most in ((OTHER, 200), (ONE, 3000)):
            body = ALL[COMPLETIONS] | {"priority": 0 if key == ONE else 2**31 - 1}
            assert server.client.post(COMPLETIONS, json=body, headers=bearer(key)).status_code == 200
            assert counts.pop() < most  # 64 and 1600 by calculation; steps, as time depends on the machine
        crowd.leave()
        wait_until(server.idle)


class Crowd:
    """Clients of one key, each of which asks again as soon as it has its answer, until they leave."""

    def __init__(self, server: Live, key: str, count: int, **options: Any) -> None:
        self._gone = threading.Event()
        self._body = {"prompt": "hello", "max_tokens": 64, "ignore_eos": True, "stream": True} | options
        self._server, self._key = server, key
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        wait_until(lambda: server.service.sequences >= count)

    def _ask(self) -> None:
        with httpx.Client(base_url=self._server.url, timeout=60, headers=bearer(self._key), verify=False) as client:
            while not self._gone.is_set():
                with client.stream("POST", COMPLETIONS, content=json.dumps(self._body), headers=JSON) as answer:
                    for _ in answer.iter_lines():
                        if self._gone.is_set():
                            break

    def leave(self) -> None:
        self._gone.set()
        for thread in self._threads:
            thread.join(30)
