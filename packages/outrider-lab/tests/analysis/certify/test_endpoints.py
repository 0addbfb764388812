"""Two small servers that answer as they are told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from outrider.cli import main
from outrider.errors import ConfigError
from outrider_lab.data.workloads import Question
from outrider_lab.referee.endpoints import compare

QUESTIONS = [Question("one", "test", "first prompt"), Question("two", "test", "second prompt")]
Answer = Callable[[dict[str, Any]], str]


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    running: list[ThreadingHTTPServer] = []

    def start(answer: Answer, gap: float | None = 1.0) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send({"data": [{"id": "toy"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                choice: dict[str, Any] = {"text": answer(body)}
                if body.get("logprobs") and gap is not None:
                    pieces = choice["text"].split(" ")
                    top = [{"x": -0.1, "y": -0.1 - gap}] * len(pieces)
                    choice["logprobs"] = {"tokens": [p + " " for p in pieces], "top_logprobs": top}
                self._send({"choices": [choice]})

            def _send(self, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def right(body: dict[str, Any]) -> str:
    if body["temperature"] == 1.0:
        return "ab"[hash((body["seed"] * 2654435761) % 97) % 2]
    return f"alpha beta {body['prompt']} {body.get('seed')}"


def statuses(endpoint: str, baseline: str, **options: Any) -> dict[str, str]:
    report = compare(endpoint, baseline, QUESTIONS, samples=60, **options)
    return {check.name: check.status for check in report.checks}


def test_equal_servers_pass(serve: Callable[..., str]) -> None:
    said: list[str] = []
    found = statuses(serve(right), serve(right) + "/v1/", tick=said.append)
    assert set(found.values()) == {"pass"}
    assert "frequencies of samples" in found
    assert len(said) >= 6


@pytest.mark.parametrize(("gap", "status"), [(1.0, "fail"), (0.1, "note"), (None, "fail")])
def test_a_greedy_difference_is_judged_by_the_baseline_s_gap(
    serve: Callable[..., str], gap: float | None, status: str
) -> None:
    def wrong(body: dict[str, Any]) -> str:
        return right(body).replace("beta", "gamma") if body["temperature"] == 0 else right(body)

    report = compare(serve(wrong), serve(right, gap), QUESTIONS, samples=60)
    found = {check.name: check.status for check in report.checks}
    count = len(report.checks)
    if status == "note":
        assert report.verdict.startswith(f"CERTIFIED WITH NOTES: {count - 2} of {count} checks passed, 2 found a diff")
        assert json.loads(report.as_json())["notes"] == ["greedy output, alone", "greedy output, concurrent"]
    else:
        assert report.verdict.startswith(f"NOT CERTIFIED: 2 of {count} checks failed: greedy output, alone")
    assert report.checks[1].summary.startswith("2 of 2 outputs differ from the baseline's")
    assert found["greedy output, alone"] == found["greedy output, concurrent"] == status
    assert found["control: baseline against itself"] == found["same seed output"] == "pass"


def test_other_tokens_with_a_seed_are_a_note_and_other_frequencies_a_failure(serve: Callable[..., str]) -> None:
    def biased(body: dict[str, Any]) -> str:
        if body["temperature"] == 1.0:
            return "a"
        return right({**body, "seed": body.get("seed") and 0})

    found = statuses(serve(biased), serve(right))
    assert found["same seed output"] == "note"
    assert found["frequencies of samples"] == "fail"
    assert found["greedy output, alone"] == "pass"


def test_a_baseline_that_does_not_repeat_itself_is_noted(serve: Callable[..., str]) -> None:
    calls: list[str] = []

    def moody(body: dict[str, Any]) -> str:
        calls.append(body["prompt"])
        return f"{right(body)} {len(calls)}" if body["temperature"] == 0 else right(body)

    assert statuses(serve(right), serve(moody))["control: baseline against itself"] == "note"


def test_errors_are_one_line(serve: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match="no URL"):
        compare("localhost:8000", "localhost:8001", QUESTIONS)
    with pytest.raises(ConfigError, match="is the server running"):
        compare("http://127.0.0.1:9", "http://127.0.0.1:9", QUESTIONS)


def test_notes_are_named_and_strict_makes_them_an_exit_code(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def other(body: dict[str, Any]) -> str:
        return right(body).replace("beta", "gamma") if body["temperature"] == 0 else right(body)

    servers = ["--endpoint", serve(other), "--baseline", serve(right, 0.1), "--quick"]
    for strict, code in ([], 0), (["--strict"], 1):
        monkeypatch.setattr("sys.argv", ["outrider", "certify", *servers, *strict])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert ended.value.code == code
        assert "CERTIFIED WITH NOTES: " in capsys.readouterr().out.splitlines()[-1]
