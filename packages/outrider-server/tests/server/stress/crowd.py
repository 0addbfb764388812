"""A crowd of clients: every endpoint and option, good and hostile, politely and rudely; and what they saw."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import h11

from tests.server.stress.client import LeftError, Manners, ask
from tests.server.stress.fuzz_http import Found, attack
from tests.server.stress.http_grammar import connection

COMPLETIONS, CHAT, LLAMA = "/v1/completions", "/v1/chat/completions", "/completion"
GETS = (
    "/health",
    "/metrics",
    "/v1/models",
    "/v1/models/none",
    "/props",
    "/slots",
    "/version",
    "/openapi.json",
    "/nothing",
)
WORDS = ("hello", "world", "the", "12", "of", "a", "\n", "é", "{", "}")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
HOSTILE: list[Any] = [
    {"prompt": ""},
    {"prompt": "x", "n": 10**9},
    {"prompt": [10**9]},
    {"prompt": [1.5] * 1000},
    {"prompt": "x", "temperature": -1},
    {"prompt": "x", "nonsense": True},
    {"prompt": "x " * 9999},
    {"prompt": "x", "logit_bias": {"9" * 5000: 1}},
    {"prompt": "x", "structured_outputs": {"regex": "(a+)+$" * 500}},
    {"prompt": "x", "speculation": {"draft": "telepathy"}},
    {"prompt": "x", "stop": ["y" * 100_000]},
    b'{"prompt": "x',
    b"\xff" * 1000,
    b"[" * 100_000,
]
MIX = {"generate": 60, "small": 10, "get": 10, "hostile": 12, "raw": 8}
"""Kinds of requests and how often each comes."""


@dataclass
class Seen:
    """What all clients saw. Every request is in one of ``answered``, ``left``, ``slow`` and ``cut``."""

    started: int = 0
    answered: Counter[int] = field(default_factory=Counter)
    left: int = 0
    slow: int = 0
    cut: int = 0
    broken_streams: int = 0  # that ended with an error
    finished: int = 0  # sequences seen to their end
    tokens: int = 0  # of those
    raw: Found = field(default_factory=Found)


def generation(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """An endpoint that generates, and a body it takes, with any of its options."""
    text = " ".join(rng.choices(WORDS, k=rng.randint(1, 60)))
    path = rng.choice((COMPLETIONS, COMPLETIONS, CHAT, LLAMA))
    tokens = rng.choice((1, 8, 30, 60, 300))
    stream = rng.random() < 0.5
    if path == LLAMA:
        return path, {"prompt": text, "n_predict": tokens, "stream": stream, "n_probs": rng.choice((0, 3))}
    body: dict[str, Any] = {"max_tokens": tokens, "stream": stream}
    body |= {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    options: dict[str, Any] = {
        "n": 2,
        "temperature": rng.choice((0, 0.7)),
        "seed": rng.randrange(1000),
        "top_p": 0.9,
        "stop": [rng.choice(WORDS), "never"],
        "logit_bias": {str(rng.randrange(200)): 5},
        "repetition_penalty": 1.2,
        "ignore_eos": True,
        "cache_salt": rng.choice("abc"),
        "priority": rng.randint(-3, 3),
        "token_details": True,
        "prediction": {"type": "content", "content": text},
        "speculation": rng.choice(("off", {"draft": "ngram"}, {"draft": "lookup", "spec_length": 4})),
    }
    body |= {name: value for name, value in options.items() if rng.random() < 0.25}
    if stream:
        body["stream_options"] = {"include_usage": True, "include_obfuscation": rng.random() < 0.2}
    if rng.random() < 0.1:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    if rng.random() < 0.2:
        body |= {"logprobs": True, "top_logprobs": 3} if path == CHAT else {"logprobs": 3}
    return path, body


def request(kind: str, rng: random.Random) -> tuple[str, str, Any]:
    if kind == "generate":
        return "POST", *generation(rng)
    if kind == "small":
        text = " ".join(rng.choices(WORDS, k=200))
        small = {"/tokenize": {"content": text}, "/detokenize": {"tokens": [5] * rng.randint(1, 500)}}
        small["/apply-template"] = {"messages": [{"role": "user", "content": text}]}
        return "POST", *rng.choice(list(small.items()))
    if kind == "get":
        return "GET", rng.choice(GETS), None
    return "POST", rng.choice((COMPLETIONS, CHAT, LLAMA, "/tokenize")), rng.choice(HOSTILE)


def manners(rng: random.Random) -> Manners:
    kind = rng.random()
    if kind < 0.6:
        return Manners()
    if kind < 0.8:
        return Manners(leave=rng.choice((0.0, 0.05, 0.3, 1.5)))
    if kind < 0.87:
        return Manners(sip=rng.uniform(0, 0.05))
    if kind < 0.93:
        return Manners(drip=rng.uniform(0, 0.2))
    return Manners(half=True)


async def client(port: int, until: float, rng: random.Random, seen: Seen) -> None:
    """One client, request after request."""
    while time.monotonic() < until:
        kind = rng.choices(list(MIX), list(MIX.values()))[0]
        if kind == "raw":
            await attack(port, seen.raw.connections, connection(rng), seen.raw)
            continue
        status = await _one(port, kind, rng, seen)
        if status in (0, 429, 503):
            await asyncio.sleep(rng.uniform(0.1, 1.0))


async def _one(port: int, kind: str, rng: random.Random, seen: Seen) -> int:
    """The status of one request, 0 without an answer."""
    method, path, body = request(kind, rng)
    behaved = manners(rng)
    seen.started += 1
    try:
        status, answer = await ask(port, method, path, body, manners=behaved)
    except LeftError:
        seen.left += 1
        return 0
    except (OSError, h11.RemoteProtocolError):
        if behaved.drip:  # it was too slow, and is told so if it listens
            seen.slow += 1
        else:
            seen.cut += 1
        return 0
    seen.answered[status] += 1
    if kind == "generate" and status == 200:
        _account(path, body, answer, seen)
    return status


def _account(path: str, body: dict[str, Any], answer: bytes, seen: Seen) -> None:
    """Count a whole answer, or a stream by its last event with usage."""
    if path == LLAMA:
        seen.finished += 1
        return
    last = json.loads(answer) if not body["stream"] else None
    for line in answer.splitlines() if last is None else ():
        if line.startswith(b"data: {"):
            last = json.loads(line[6:])
    if last is None or "error" in last:
        seen.broken_streams += 1
    else:
        seen.finished += body.get("n", 1)
        seen.tokens += last["usage"]["completion_tokens"]


async def crowd(port: int, clients: int, seconds: float, seed: int = 0) -> Seen:
    """So many clients for so long."""
    seen, until = Seen(), time.monotonic() + seconds
    await asyncio.gather(*(client(port, until, random.Random(f"{seed}:{i}"), seen) for i in range(clients)))
    return seen


def reconcile(seen: Seen, before: dict[str, float], after: dict[str, float], *, failures: bool) -> list[str]:
    """What does not agree between clients and server. ``failures``: requests may fail, as the engine is made to."""

    def grown(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    checks = {
        "sequences still run": after["num_requests_running"] == 0,
        "sequences still wait": after["num_requests_waiting"] == 0,
        "sequences still hold places": after["num_sequences_admitted"] == 0,
        "requests are still being answered": after["http_requests_in_progress"] == 1,  # that for the metrics
        "the cache is not empty": after["kv_cache_usage_perc"] < 1e-9,
        "requests are unaccounted for": seen.started == seen.answered.total() + seen.left + seen.slow + seen.cut,
        "clients saw more sequences end than the server": seen.finished <= grown("request_success_total"),
        "clients saw more tokens than were made": seen.tokens <= grown("generation_tokens_total"),
        "a server error": failures or not any(s >= 500 and s != 503 for s in seen.answered),
        "a stream broke off": failures or seen.broken_streams == 0,
        "a connection was cut": seen.cut == 0,
    }
    checks |= {
        f"clients saw more of {status} than the server": count <= grown(f"status:{status}")
        for status, count in seen.answered.items()
    }
    unsound = [each for each in seen.raw.amiss if not failures]
    return [*unsound, *(words for words, true in checks.items() if not true)]
