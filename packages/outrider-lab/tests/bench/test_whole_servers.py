"""``benchmarks.whole_servers`` and the server that it measures OpenVINO with."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from benchmarks import openvino_server
from benchmarks.whole_requests import Task
from benchmarks.whole_servers import Answer, Pair, ask, report
from outrider import StructuredOutput


class Tokenizer:
    def apply_chat_template(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        assert add_generation_prompt
        return messages[-1]["content"]


class Genai:
    """As much of OpenVINO GenAI as the server calls: it repeats the prompt, a word at a time."""

    StreamingStatus = SimpleNamespace(RUNNING=0)
    StructuredOutputConfig = SimpleNamespace

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.configs: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        assert name == "LLMPipeline"
        return self._pipeline

    def _pipeline(self, model: str, device: str, **options: Any) -> Genai:
        self.made.append(options)
        return self

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def get_generation_config(self) -> SimpleNamespace:
        return SimpleNamespace()

    def generate(self, prompts: list[str], config: SimpleNamespace, stream: Callable[[str], Any]) -> Any:
        self.configs.append(config)
        words = prompts[0].split()[: config.max_new_tokens]
        if "break" in words:
            raise RuntimeError("no such grammar")
        for word in words:
            stream(word + " ")
        return SimpleNamespace(
            perf_metrics=SimpleNamespace(get_num_input_tokens=lambda: 7, get_num_generated_tokens=lambda: len(words))
        )


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, genai: Genai, lookup: int) -> Iterator[str]:
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)
    server = ThreadingHTTPServer(("127.0.0.1", 0), openvino_server.handler(openvino_server.Pipeline("m", lookup, 3)))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def asked(url: str, *tasks: Task) -> list[Answer]:
    async def run() -> list[Answer]:
        async with httpx.AsyncClient() as client:
            return [await ask(client, url, "any", task, 3) for task in tasks]

    return asyncio.run(run())


def test_openvino_answers_chats_with_the_options_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    genai = Genai()
    form = StructuredOutput(json_schema={"type": "object"})
    tasks = [
        Task("one two three four"),
        Task("five", {"temperature": 1.0, "seed": 5}),
        Task("{}", {"structured": form}),
    ]
    with served(monkeypatch, genai, 5) as url:
        answers = asked(url, *tasks)
    assert [(each.text, each.tokens, each.failed) for each in answers] == [
        ("one two three ", 3, ""), ("five ", 1, ""), ("{} ", 1, "")
    ]  # fmt: skip
    greedy, drawn, formed = genai.configs
    assert genai.made == [{"prompt_lookup": True}]
    assert all((config.num_assistant_tokens, config.max_ngram_size) == (5, 3) for config in genai.configs)
    assert (greedy.do_sample, drawn.do_sample, drawn.temperature, drawn.rng_seed) == (False, True, 1.0, 5)
    assert formed.structured_output_config.json_schema == '{"type": "object"}'


def test_plain_openvino_looks_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    genai = Genai()
    with served(monkeypatch, genai, 0) as url:
        asked(url, Task("one"))
    assert genai.made == [{}]
    assert not hasattr(genai.configs[0], "num_assistant_tokens")


def test_answers_that_break_off_are_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(monkeypatch, Genai(), 0) as url:
        whole, broken = asked(url, Task("one two"), Task("break"))
    assert "no such grammar" in broken.failed
    pair = Pair("openvino", ("", ""), [("chat", 16, 1, whole, whole), ("JSON", 16, 1, whole, broken)])
    found = report(pair)
    assert (found["all"]["requests"], found["all"]["same"], found["all"]["failed"]) == (1, 1, 1)
    only_broken = next(row for row in found["rows"] if row.get("kind") == "JSON")
    assert (only_broken["requests"], only_broken["failed"], only_broken["whole"]) == (0, 1, {})
    assert found["failures"] == [broken.failed]
