"""Several models from one process: loaded when asked for, one load for all who wait, unloaded when idle."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from outrider import LLM, StructuredOutput
from outrider.errors import ConfigError, ModelNotFoundError
from outrider_server.app import create_app
from outrider_server.executors import Executors
from outrider_server.model_specs import ModelSpec
from outrider_server.models import Models
from outrider_server.ollama.keep_alive import kept_seconds
from outrider_server.settings import ServerSettings
from tests.server.conftest import load
from tests.server.live import Live, wait_until

NAMES = ("one", "two", "three")
ASK = {"prompt": "hello world", "max_tokens": 6, "temperature": 0, "seed": 1}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "temperature": 0}


class Pool:
    """A server of three names for the tiny model, asked without a network."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.loads: list[str] = []
        self.engines: list[weakref.ref[Any]] = []
        self.failing: dict[str, Exception] = {}
        self.gate = threading.Event()  # loads wait for it
        self.gate.set()
        specs = tuple(ModelSpec(name=name, model=str(folder)) for name in NAMES)
        loaders = {name: self._loader(name) for name in NAMES}
        self.models = Models.on_demand(ServerSettings(models=specs, **settings), loaders)
        transport = httpx.ASGITransport(create_app(self.models))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60)

    def _loader(self, name: str) -> Callable[[], LLM]:
        def make() -> LLM:
            self.loads.append(name)
            assert self.gate.wait(20)
            if name in self.failing:
                raise self.failing[name]
            llm = load(self.folder)
            self.engines.append(weakref.ref(llm.engine))
            return llm

        return make

    async def ask(self, model: str, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json=ASK | {"model": model} | fields)

    async def get(self, path: str) -> Any:
        return (await self.client.get(path)).json()

    async def text(self, model: str, **fields: Any) -> str:
        answer = await self.ask(model, **fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def loaded(self) -> set[str]:
        assert self.models.pool is not None
        return {name for name, model in self.models.pool.models.items() if model.is_loaded}


def with_pool(folder: Path, test: Callable[[Pool], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with _open(folder, **settings) as pool:
            await asyncio.wait_for(test(pool), 60)

    asyncio.run(run())


@asynccontextmanager
async def _open(folder: Path, **settings: Any) -> AsyncIterator[Pool]:
    pool = Pool(folder, **settings)
    try:
        async with pool.client:
            yield pool
    finally:
        pool.gate.set()
        while pool.models.is_changing:
            await asyncio.sleep(0.005)
        pool.models.close()


async def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "it never became true"
        await asyncio.sleep(0.005)


def test_each_is_loaded_once_and_answers_as_a_server_of_its_own(folder: Path, live: Live) -> None:
    alone = live.post("/v1/completions", ASK)["choices"][0]["text"]

    async def test(pool: Pool) -> None:
        assert (await pool.get("/health")) == {"status": "ok"}, "nothing is loaded yet, and all can be asked for"
        assert pool.loads == []
        pool.gate.clear()
        asked = [asyncio.ensure_future(pool.text(name)) for name in ("one", "one", "two", "one")]
        await until(lambda: pool.loads == ["one"])
        assert (await pool.get("/v1/models"))["data"][0]["status"] == {"value": "loading"}
        pool.gate.set()
        assert await asyncio.gather(*asked) == [alone] * 4
        assert pool.loads == ["one", "two"], "all who ask for a model wait for one load"
        assert pool.loaded() == {"one", "two"}

    with_pool(folder, test)


def test_every_api_names_its_model(folder: Path) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": CHAT,
        "/v1/responses": {"input": "hello", "max_output_tokens": 3},
        "/v1/messages": {"messages": CHAT["messages"], "max_tokens": 3},
        "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
        "/v1/embeddings": {"input": "hello"},
        "/completion": {"prompt": "hello", "n_predict": 3},
        "/tokenize": {"prompt": "hello"},
        "/detokenize": {"tokens": [5, 6]},
        "/apply-template": {"messages": CHAT["messages"]},
        "/api/chat": {"messages": CHAT["messages"], "stream": False, "options": {"num_predict": 3}},
        "/api/generate": {"prompt": "hello", "stream": False, "options": {"num_predict": 3}},
        "/api/embed": {"input": "hello"},
        "/api/embeddings": {"prompt": "hello"},
        "/api/show": {},
    }

    async def test(pool: Pool) -> None:
        for path, body in bodies.items():
            answer = await pool.client.post(path, json=body | {"model": "two"})
            assert answer.status_code == 200, (path, answer.text)
            assert answer.json().get("model", "two") == "two"
            refused = await pool.client.post(path, json=body | {"model": "four"})
            assert refused.status_code == 404, path
            assert "four" in refused.text
            assert "use one, two, three" in refused.text
        assert (await pool.client.post("/api/show", json={"model": "two:latest"})).status_code == 200
        assert (await pool.get("/props?model=two"))["model_alias"] == "two"  # it is loaded by now
        assert len(await pool.get("/slots?model=two")) == 4
        assert await pool.get("/slots?model=three") == []
        assert pool.loads == ["two"]

    with_pool(folder, test)


def test_no_get_loads_a_model_or_keeps_one(folder: Path) -> None:
    """Any web page may have one sent, as the address of an image."""

    async def test(pool: Pool) -> None:
        assert pool.models.pool is not None
        await pool.text("two")
        pool.loads.clear()
        document = await pool.get("/openapi.json")
        paths = [path.replace("{name}", "three") for path, methods in document["paths"].items() if "get" in methods]
        assert "/props" in paths
        two = pool.models.pool.models["two"]
        before = (two.used_at, two.timer, two.users, pool.loaded())
        for path in [*paths, "/", "/models", "/statistics", "/openapi.json"]:
            for query in ("", "?model=two", "?model=three", "?model=none", "?name=three&model=three"):
                for method in ("GET", "HEAD"):
                    answer = await asyncio.wait_for(pool.client.request(method, path + query), 5)
                    assert answer.status_code < 500, (path, query)
        assert pool.loads == []
        assert (two.used_at, two.timer, two.users, pool.loaded()) == before
        answer = await pool.client.get("/props?model=three")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model_not_loaded")
        assert (await pool.client.get("/props?model=none")).status_code == 404

    with_pool(folder, test, model_idle_seconds=60.0)


def test_lists_of_models(folder: Path) -> None:
    async def test(pool: Pool) -> None:
        await pool.text("two")
        entries = {entry["id"]: entry for entry in (await pool.get("/v1/models"))["data"]}
        assert {name: entry["status"]["value"] for name, entry in entries.items()} == {
            "one": "unloaded",
            "two": "loaded",
            "three": "unloaded",
        }
        assert "speculation" in entries["two"]
        assert (await pool.get("/v1/models/three"))["status"] == {"value": "unloaded"}
        assert [entry["name"] for entry in (await pool.get("/api/tags"))["models"]] == [*NAMES]
        [running] = (await pool.get("/api/ps"))["models"]
        assert (running["name"], running["expires_at"][:4]) == ("two", "9999")

    with_pool(folder, test)


def test_an_idle_model_is_unloaded_and_released(folder: Path) -> None:
    async def test(pool: Pool) -> None:
        first = await pool.text("one")
        assert pool.loaded() == {"one"}
        await until(lambda: pool.loaded() == set())
        await until(lambda: not pool.models.is_changing)
        gc.collect()
        assert pool.engines[0]() is None, "the engine, its weights and its caches are gone"
        assert not [thread for thread in threading.enumerate() if thread.name == "outrider-engine" and _own(thread)]
        assert await pool.text("one") == first
        assert pool.loads == ["one", "one"]
        counted = {s.name: s.value for f in await _metrics(pool) for s in f.samples if not s.labels}
        assert counted["outrider:generation_tokens_total"] == 12, "counts of engines that have gone are kept"

    threads = set(threading.enumerate())

    def _own(thread: threading.Thread) -> bool:
        return thread not in threads

    with_pool(folder, test, model_idle_seconds=0.2)


def test_a_model_in_use_is_not_idle(folder: Path) -> None:
    async def test(pool: Pool) -> None:
        await pool.text("one", max_tokens=1)
        engine: Any = pool.models.services[0].engine.llm.engine
        step = engine.step

        def slow() -> Any:
            time.sleep(0.02)
            return step()

        engine.step = slow
        asked = asyncio.ensure_future(pool.text("one", max_tokens=40, ignore_eos=True))
        await until(lambda: pool.models.sequences == 1)
        await asyncio.sleep(0.25)
        assert not asked.done()
        assert pool.loaded() == {"one"}
        await asked
        assert pool.loads == ["one"]

    with_pool(folder, test, model_idle_seconds=0.1)


def test_the_least_recently_used_idle_model_gives_way(folder: Path) -> None:
    async def test(pool: Pool) -> None:
        for name in ("one", "two", "one", "three"):
            await pool.text(name)
        assert pool.loaded() == {"one", "three"}
        assert pool.loads == ["one", "two", "three"]

    with_pool(folder, test, max_loaded_models=2)


def test_turns_when_all_models_are_busy(folder: Path) -> None:
    """A busy model takes no new requests while another waits for its place: else that might wait for ever."""

    async def test(pool: Pool) -> None:
        assert pool.models.pool is not None
        one, two = (pool.models.pool.find(name) for name in ("one", "two"))
        with ExitStack() as held:
            await pool.models.pool.hold(one, "", held)
            asked = [asyncio.ensure_future(pool.text("two"))]
            await until(lambda: bool(two.waiting))
            asked.append(asyncio.ensure_future(pool.text("one")))
            await asyncio.sleep(0.1)
            assert not any(answer.done() for answer in asked)
            assert (len(one.waiting), len(two.waiting), pool.loads) == (1, 1, ["one"])
        first, second = await asyncio.gather(*asked)
        assert first == second
        assert pool.loads == ["one", "two", "one"]

    with_pool(folder, test, max_loaded_models=1)


def test_a_load_that_fails_is_told_and_tried_again(folder: Path) -> None:
    async def test(pool: Pool) -> None:
        pool.failing["one"] = ModelNotFoundError("no model at /secret/place")
        pool.gate.clear()
        asked = [asyncio.ensure_future(pool.ask("one")) for _ in range(3)]
        await until(lambda: pool.loads == ["one"])
        pool.gate.set()
        for answer in await asyncio.gather(*asked):
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "model_load_failed")
            assert "'one' cannot be loaded" in error["message"]
            assert "use another model" in error["message"]
            assert "secret" not in error["message"]
        assert pool.loads == ["one"]
        assert (await pool.get("/v1/models/one"))["status"] == {"value": "unloaded"}
        assert await pool.text("two") != ""
        pool.failing.clear()
        assert await pool.text("one") == await pool.text("two")

    with_pool(folder, test)


def test_waiting_has_a_deadline_and_a_limit(folder: Path) -> None:
    async def test(pool: Pool) -> None:
        pool.gate.clear()
        first, second, third = await asyncio.gather(*(pool.ask("one") for _ in range(3)))
        for late in (first, second):
            assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
            assert "the model 'one' was not loaded within 0.3 s" in late.json()["error"]["message"]
        assert (third.status_code, third.json()["error"]["code"]) == (429, "queue_full")
        assert third.headers["retry-after"]
        pool.gate.set()
        await until(lambda: pool.loaded() == {"one"})
        assert pool.loads == ["one"]

    with_pool(folder, test, request_timeout=0.3, max_queue=1)


def test_keep_alive(folder: Path) -> None:
    async def test(pool: Pool) -> None:
        async def ollama(**fields: Any) -> Any:
            body = {"model": "one", "prompt": "hello", "stream": False, "options": {"num_predict": 2}} | fields
            return (await pool.client.post("/api/generate", json=body)).json()

        assert (await ollama(keep_alive=0))["done"]
        await until(lambda: pool.loaded() == set())
        assert (await ollama(prompt="", keep_alive="10m"))["done_reason"] == "load"
        [running] = (await pool.get("/api/ps"))["models"]
        assert running["expires_at"] < "9999"
        await ollama(keep_alive=-1)
        [running] = (await pool.get("/api/ps"))["models"]
        assert running["expires_at"].startswith("9999")
        assert (await ollama(prompt="", keep_alive=0))["done_reason"] == "unload"
        await until(lambda: pool.loaded() == set())
        loads = len(pool.loads)
        assert (await ollama(prompt="", keep_alive=0))["done_reason"] == "unload"
        assert "keep_alive='soon' is not valid" in (await ollama(keep_alive="soon"))["error"]
        assert len(pool.loads) == loads

    with_pool(folder, test)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (5, 5),
        (0, 0),
        (-1, float("inf")),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("-1m", float("inf")),
        ("30", 30),
    ],
)
def test_durations(given: float | str, seconds: float) -> None:
    assert kept_seconds(given) == seconds


def test_an_engine_that_dies_takes_no_other_with_it(folder: Path) -> None:
    async def test(pool: Pool) -> None:
        text = await pool.text("two")
        await pool.text("one")
        engine: Any = pool.models.services[0].engine.llm.engine

        def die() -> None:
            raise SystemExit("broken")

        engine.step = die
        lost = await pool.ask("one")
        assert (lost.status_code, lost.json()["error"]["code"]) == (503, "engine_dead")
        assert await pool.text("one") == await pool.text("two") == text
        assert pool.loads == ["two", "one", "one"]

    with_pool(folder, test)


def test_nothing_is_lost_at_the_end(folder: Path) -> None:
    async def test(pool: Pool) -> None:
        pool.gate.clear()
        waits = asyncio.ensure_future(pool.text("one"))
        await until(lambda: pool.loads == ["one"])
        pool.models.drain()
        assert (await pool.get("/health")) == {"status": "draining"}
        pool.gate.set()
        assert await waits != "", "what was asked for before is answered"
        pool.gate.clear()
        late = asyncio.ensure_future(pool.ask("two"))
        await until(lambda: pool.loads == ["one", "two"])
        pool.models.give_up()
        assert (await late).json()["error"]["code"] == "draining"
        pool.gate.set()
        await until(lambda: not pool.models.is_changing)
        engines = [service.engine for service in pool.models.services[:2]]
        pool.models.close()
        assert not any(engine.alive for engine in engines)

    with_pool(folder, test)


def test_a_stream_that_is_left_lets_go_of_its_model(folder: Path) -> None:
    body = ASK | {"model": "one", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with Live(None, loaders={name: lambda: load(folder) for name in NAMES}) as server:
        pool = server.server.models.pool
        assert pool is not None
        with server.client.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
            assert pool.find("one").users == 1
        wait_until(lambda: pool.find("one").users == 0)
        assert server.client.post("/v1/completions", json=ASK | {"model": "one", "n": 0}).status_code == 400
        wait_until(lambda: pool.find("one").users == 0)


def test_each_model_compiles_its_own_grammars() -> None:
    class Grammars:
        compiled = 0

        def is_known(self, *_: object) -> bool:
            return False

        def constraint(self, *_: object) -> None:
            time.sleep(0.05)
            self.compiled += 1

    async def run(*several: Any) -> None:
        form = StructuredOutput(regex="[a-z]")
        await asyncio.gather(*(executors.compile(grammars, form, "") for grammars in several))

    executors, one, two = Executors(), Grammars(), Grammars()
    asyncio.run(run(one, one, two))
    executors.close()
    assert (one.compiled, two.compiled) == (1, 1)


async def _metrics(pool: Pool) -> list[Any]:
    return list(text_string_to_metric_families((await pool.client.get("/metrics")).text))


def test_metrics(folder: Path) -> None:
    async def ask(pool: Pool) -> dict[Any, float]:
        for name in ("one", "two"):
            await pool.text(name)
        samples = [sample for family in await _metrics(pool) for sample in family.samples]
        return {(s.name.partition(":")[2], s.labels.get("model_name")): s.value for s in samples}

    async def plain(pool: Pool) -> None:
        found = await ask(pool)
        assert found["generation_tokens_total", None] == 12
        assert not any(name for _, name in found)

    async def as_vllm(pool: Pool) -> None:
        found = await ask(pool)
        assert [found["generation_tokens_total", name] for name in ("one", "two")] == [6, 6]
        assert ("http_requests_in_progress", None) in found

    with_pool(folder, plain)
    with_pool(folder, as_vllm, metrics_prefix="vllm")


def test_keys_stay_apart_within_each_model(folder: Path) -> None:
    async def test(pool: Pool) -> None:
        async def cached(model: str, key: str) -> int:
            body = ASK | {"prompt": "the world " * 40, "model": model}
            headers = {"Authorization": f"Bearer {key}"}
            answer = (await pool.client.post("/v1/completions", json=body, headers=headers)).json()
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        for model in ("one", "two"):
            assert [await cached(model, key) > 0 for key in ("a", "b", "a", "b")] == [False, False, True, True]

    with_pool(folder, test, api_keys=("a", "b"))


def test_settings() -> None:
    for given in ({"max_loaded_models": 1}, {"model_idle_seconds": 5.0}):
        with pytest.raises(ConfigError, match="give them with --models"):
            ServerSettings(**given)
