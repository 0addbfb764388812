"""OpenVINO GenAI behind the part of OpenAI's chat API that ``benchmarks.whole_servers`` asks for.

    python benchmarks/openvino_server.py MODEL.gguf --port 8401
    python benchmarks/openvino_server.py MODEL.gguf --port 8402 --lookup 5

For an environment that has ``openvino_genai`` and nothing else: only the standard library is imported beside it. MODEL
is a folder in OpenVINO's format, or a GGUF file of an architecture that it reads. Requests are answered one at a time,
streamed. ``--lookup K`` drafts at most K tokens by prompt lookup.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Pipeline:
    """OpenVINO's pipeline with or without prompt lookup."""

    def __init__(self, model: str, lookup: int, ngram: int) -> None:
        """``lookup``: draft tokens at most, 0 for none. ``ngram``: the longest n-gram that is looked up."""
        import openvino_genai

        self._api, self._lookup, self._ngram, self._lock = openvino_genai, lookup, ngram, threading.Lock()
        self._pipeline = openvino_genai.LLMPipeline(model, "CPU", **({"prompt_lookup": True} if lookup else {}))
        self._tokenizer = self._pipeline.get_tokenizer()

    def options(self, asked: dict[str, Any]) -> Any:
        """The generation config of a request in OpenAI's fields."""
        config = self._pipeline.get_generation_config()
        config.max_new_tokens, config.apply_chat_template = asked["max_tokens"], False
        if asked.get("temperature", 1.0) > 0:
            config.do_sample, config.temperature = True, asked.get("temperature", 1.0)
            config.top_k, config.top_p, config.rng_seed = 0, 1.0, asked.get("seed", 0)
        else:
            config.do_sample = False
        if form := asked.get("response_format"):
            schema = json.dumps(form["json_schema"]["schema"])
            config.structured_output_config = self._api.StructuredOutputConfig(json_schema=schema)
        if self._lookup:
            config.num_assistant_tokens, config.max_ngram_size = self._lookup, self._ngram
        return config

    def answer(self, asked: dict[str, Any], send: Callable[[str], None]) -> dict[str, int]:
        """Stream an answer's text. Returns its usage."""
        prompt = self._tokenizer.apply_chat_template(asked["messages"], add_generation_prompt=True)

        def stream(text: str) -> Any:
            send(text)
            return self._api.StreamingStatus.RUNNING

        with self._lock:
            metrics = self._pipeline.generate([prompt], self.options(asked), stream).perf_metrics
        return {
            "prompt_tokens": metrics.get_num_input_tokens(),
            "completion_tokens": metrics.get_num_generated_tokens(),
        }


def handler(pipeline: Pipeline) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": "openvino"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                usage = pipeline.answer(asked, lambda text: self._event({"choices": [{"delta": {"content": text}}]}))
            except RuntimeError as error:
                self._event({"error": {"message": str(error)}})
                return
            self._event({"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")

        def _event(self, event: dict[str, Any]) -> None:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            self.wfile.flush()

        def _send(self, status: int, body: dict[str, Any]) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the tool that asks says what it measures."""

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lookup", type=int, default=0, metavar="K", help="draft tokens at most")
    parser.add_argument("--ngram", type=int, default=3, help="the longest n-gram that is looked up")
    args = parser.parse_args()
    pipeline = Pipeline(args.model, args.lookup, args.ngram)
    ThreadingHTTPServer(("127.0.0.1", args.port), handler(pipeline)).serve_forever()


if __name__ == "__main__":
    main()
