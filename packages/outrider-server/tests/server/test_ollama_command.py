"""Ollama's commands."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.cli.test_cli import run
from tests.model_folders import model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "target")


def test_run_answers_the_prompt_that_is_given_or_piped_in(folder: Path) -> None:
    options = ("-n", "8", "--draft", "none", "--json")
    given = json.loads(run("run", str(folder), "hello", "world", *options).stdout)
    piped = json.loads(run("run", str(folder), *options, stdin="hello world\n").stdout)
    own = json.loads(run("generate", "hello world", "-m", str(folder), *options).stdout)
    assert given["token_ids"] == piped["token_ids"] == own["token_ids"]
    assert "the prompt is empty" in run("run", str(folder), code=2).stderr


def test_models_are_listed_shown_and_removed_in_ollama_s_words(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    for own, other in (("list", "list"), ("list", "ls")):
        assert run(other, "--json").stdout == run("models", own, "--json").stdout
    assert run("show", str(folder)).stdout == run("models", "info", str(folder)).stdout
    assert str(folder) in run("pull", str(folder)).stdout
    assert "no cache holds 'stories15m'" in run("rm", "stories15m", code=2).stderr


def test_help_names_them() -> None:
    assert "run, ps, pull, list, show and rm" in run("--help").stdout


class _Server(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, Any]] = {}
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Authorization"))
        body = self.answers.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_ps_shows_what_a_server_has_loaded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {
        "name": "m", "size": 97e6, "context_length": 8192, "expires_at": "9999-12-31T23:59:59Z",
        "details": {"family": "llama", "quantization_level": "q4_1"},
    }  # fmt: skip
    monkeypatch.setattr(_Server, "answers", {"/api/ps": {"models": [entry]}})
    monkeypatch.setattr(_Server, "asked", [])
    assert run("ps", "--url", url).stdout == "m  llama q4_1, 97 MB, context 8192, stays loaded\n"
    assert json.loads(run("ps", "--url", url, "--api-key", "secret", "--json").stdout) == [entry]
    assert _Server.asked == [None, "Bearer secret"]
    monkeypatch.setattr(_Server, "answers", {"/api/ps": {"models": []}})
    assert run("ps", "--url", url).stdout == "no model is loaded\n"


def test_ps_says_what_is_wrong(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "answers 404 Not Found: is it `outrider serve`?" in run("ps", "--url", url, code=1).stderr
    monkeypatch.setattr(_Server, "answers", {"/api/ps": ["something else"]})
    assert "is no `outrider serve`" in run("ps", "--url", url, code=1).stderr
    assert "no server answers at http://127.0.0.1:1 " in run("ps", "--url", "http://127.0.0.1:1", code=1).stderr
    assert "is no address of a server" in run("ps", "--url", "file:///etc/passwd", code=2).stderr
