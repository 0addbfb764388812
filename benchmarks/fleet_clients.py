"""Clients for ``benchmarks.fleet``: requests of several APIs, what one engine answers to them, and a plain reader."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, replace
from typing import Any

WORDS = ("river stone light copper garden window silver engine", "paper mountain letter orange bridge winter harbour")
SYSTEMS = 6  # different system prompts
AT_ONCE = 8  # of the answers that are worked out
KINDS = ("chat", "chat_stream", "completion_stream", "messages_stream", "generate_stream")
PATHS = {
    "chat": "/v1/chat/completions",
    "chat_stream": "/v1/chat/completions",
    "completion": "/v1/completions",
    "completion_stream": "/v1/completions",
    "messages_stream": "/v1/messages",
    "generate_stream": "/api/generate",
}


@dataclass(frozen=True)
class Job:
    """A request, and the text of its answer."""

    number: int
    conversation: int
    kind: str
    body: dict[str, Any]
    expected: str = ""


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: int
    first_s: float
    whole_s: float
    status: int = 200
    error: str = ""


def make_jobs(count: int, turns: int, max_tokens: int, seed: int, kinds: tuple[str, ...] = KINDS) -> list[Job]:
    """Conversations of so many turns; each turn's prompt begins with the one before it."""
    chooser = random.Random(seed)
    systems = [" ".join(chooser.choices(" ".join(WORDS).split(), k=40)) for _ in range(SYSTEMS)]
    jobs: list[Job] = []
    said: list[str] = []
    for number in range(count):
        turn = number % turns
        if turn == 0:
            system, said = chooser.choice(systems), []
            kind = kinds[(number // turns) % len(kinds)]
        said = [*said, " ".join(chooser.choices(" ".join(WORDS).split(), k=8))]
        jobs.append(Job(number, number // turns, kind, _body(kind, system, said, max_tokens, number)))
    return jobs


def _body(kind: str, system: str, said: list[str], max_tokens: int, seed: int) -> dict[str, Any]:
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(_with_answers(said))]
    if kind in ("completion", "completion_stream"):
        prompt, streams = f"{system}\n" + "\n".join(said), kind == "completion_stream"
        options = {"model": "tiny", "max_tokens": max_tokens, "seed": seed, "temperature": 1}  # routers want a model
        return options | {"prompt": prompt, "stream": streams}
    if kind == "generate_stream":
        options = {"seed": seed, "temperature": 1, "num_predict": max_tokens}
        return {"model": "tiny", "prompt": f"{system}\n" + "\n".join(said), "raw": True, "options": options}
    if kind == "messages_stream":  # it has no seed: greedy
        return {"system": system, "messages": turns, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    messages = [{"role": "system", "content": system}, *turns]
    body: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": max_tokens, "temperature": 1}
    body["seed"] = seed
    return body | ({"stream": True, "stream_options": {"include_usage": True}} if kind == "chat_stream" else {})


def _with_answers(said: list[str]) -> list[str]:
    """Short answers between what was said, so that roles alternate."""
    mixed: list[str] = []
    for text in said:
        mixed += [text, text.split()[0]]
    return mixed[:-1]


def expected(model: str, jobs: list[Job]) -> None:
    """Fill in what a server of one engine without drafts says, in place."""
    from outrider import LLM
    from tests.server.live import Live

    with Live(LLM(model, draft="none", max_batch_size=AT_ONCE), "tiny") as live:
        waiting = iter(enumerate(jobs))

        async def ask_some() -> None:
            client = Client(("127.0.0.1", live.port))
            for index, job in waiting:
                answer = await client.ask(job, "")
                assert not answer.error, answer.error
                found[index] = replace(job, expected=answer.text)

        async def ask_all() -> None:
            await asyncio.gather(*(ask_some() for _ in range(AT_ONCE)))

        found = list(jobs)
        asyncio.run(ask_all())
        jobs[:] = found


class Client:
    """One connection that is kept, in HTTP/1.1: much less work for the machine than a full client."""

    def __init__(self, address: tuple[str, int], session_header: str = "X-Session-Id") -> None:
        self._address, self._session_header = address, session_header
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, job: Job, session: str) -> Answer:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(120):
                status, first, body = await self._send("POST", PATHS[job.kind], json.dumps(job.body), session)
        except (OSError, EOFError, ValueError, TimeoutError) as error:
            self._streams = None
            return Answer("", 0, 0, 0, error=f"{job.kind}: {type(error).__name__} {error}")
        whole = time.perf_counter() - began
        if status != 200:
            return Answer("", 0, 0, 0, status, f"{job.kind}: {status} {body[:150]!r}")
        try:
            text, tokens = read(job.kind, body.decode())
        except (ValueError, KeyError, IndexError) as error:
            return Answer("", 0, 0, 0, error=f"{job.kind}: {error!r} in {body[-200:]!r}")
        return Answer(text, tokens, first - began, whole)

    async def get(self, path: str) -> str:
        return (await self._send("GET", path, "", ""))[2].decode()

    async def _send(self, method: str, path: str, body: str, session: str) -> tuple[int, float, bytes]:
        """Status, when the first byte of the answer's body came, and the body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        data = body.encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(data)}\r\n" + (f"{self._session_header}: {session}\r\n" if session else "")
        writer.write(head.encode() + b"\r\n" + data)
        answered = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status, pieces, first = int(answered.split()[1]), [], 0.0
        if "transfer-encoding: chunked" in answered:
            while size := int(await reader.readline(), 16):
                pieces.append(await reader.readexactly(size))
                first = first or time.perf_counter()
                await reader.readexactly(2)
            await reader.readline()
        else:
            length = int(answered.split("content-length: ")[1].split("\r\n")[0])
            pieces.append(await reader.readexactly(length))
            first = time.perf_counter()
        if "connection: close" in answered:
            writer.close()
            self._streams = None
        return status, first, b"".join(pieces)


def read(kind: str, body: str) -> tuple[str, int]:
    """Text and number of tokens of an answer; ValueError if it is broken off or tells of an error."""
    if kind == "chat":
        whole = json.loads(body)
        return whole["choices"][0]["message"]["content"], whole["usage"]["completion_tokens"]
    if kind == "completion":
        whole = json.loads(body)
        return whole["choices"][0]["text"], whole["usage"]["completion_tokens"]
    if kind == "generate_stream":
        events = [json.loads(line) for line in body.splitlines() if line.strip()]
        _check(events, ended=events[-1].get("done") is True)
        return "".join(event["response"] for event in events), events[-1]["eval_count"]
    data = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in data if line != "[DONE]"]
    if kind == "messages_stream":
        _check(events, ended=events[-1]["type"] == "message_stop")
        texts = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
        return "".join(texts), events[-2]["usage"]["output_tokens"]
    _check(events, ended=data[-1] == "[DONE]")
    if kind == "completion_stream":
        timings = next(event["timings"] for event in reversed(events) if "timings" in event)
        return "".join(choice["text"] for event in events for choice in event["choices"]), timings["predicted_n"]
    texts = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    return "".join(texts), events[-1]["usage"]["completion_tokens"]


def _check(events: list[dict[str, Any]], *, ended: bool) -> None:
    error = next((event["error"] for event in events if "error" in event), None)
    if error is not None or not ended:
        raise ValueError(f"the stream did not end well: {error}")
