"""Whole requests at servers of several engines, each plain and with its drafts, in one run.

    python -m benchmarks.whole_servers --questions QUESTIONS \\
        --server outrider=http://localhost:8101,http://localhost:8102 \\
        --server llama.cpp=http://localhost:8201,http://localhost:8202 --lengths 16 64 256 --slots 1 4

Of each pair the first server decodes plainly, and the second has its engine's default drafts. All answer the same
chats, streamed: kinds of text take turns, and within each chat the servers do, in an order that rotates. Only one
server works at a time. A ratio is plain time over the time with drafts of one request, as in
``benchmarks.whole_requests``, whose kinds of text these are. Tokens per second are of whole requests; *same* counts
texts equal to the engine's plain ones. Answers that a server breaks off are named, counted and left out.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.whole_requests import CATEGORIES, WARM, Task, count, questions_of, summary
from outrider import StructuredOutput
from outrider.native.processor import processor_name


@dataclass(frozen=True)
class Answer:
    """Of one request: seconds in all and to the first text, the text, and its tokens as the server counts them."""

    whole: float
    first: float
    text: str
    tokens: int
    failed: str = ""
    """Why the server broke it off."""


@dataclass
class Pair:
    """An engine's two servers, and the answers of both to each chat."""

    name: str
    urls: tuple[str, str]
    answers: list[tuple[str, int, int, Answer, Answer]] = field(default_factory=list)
    """Kind, length, requests at once, plain, with drafts."""


def body(task: Task, length: int) -> dict[str, Any]:
    """The request of a chat, in the fields that OpenAI's API has."""
    asked: dict[str, Any] = {
        "model": "any",
        "messages": [{"role": "user", "content": task.prompt}],
        "max_tokens": length,
        "temperature": task.options.get("temperature", 0.0),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if "seed" in task.options:
        asked["seed"] = task.options["seed"]
    form = task.options.get("structured")
    if isinstance(form, StructuredOutput):
        found = form.json_schema
        schema = {"name": "answer", "schema": json.loads(found) if isinstance(found, str) else found, "strict": True}
        asked["response_format"] = {"type": "json_schema", "json_schema": schema}
    return asked


async def ask(client: httpx.AsyncClient, url: str, model: str, task: Task, length: int) -> Answer:
    began, first, parts, tokens, failed = time.perf_counter(), 0.0, list[str](), 0, ""
    asked = body(task, length) | {"model": model}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=asked) as response:
        if response.status_code != 200:
            raise SystemExit(f"{url}: HTTP {response.status_code}: {(await response.aread()).decode()[:300]}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            said = json.loads(line.removeprefix("data: "))
            failed = str(said["error"])[:200] if said.get("error") else failed
            tokens = (said.get("usage") or {}).get("completion_tokens", tokens)
            for choice in said.get("choices", []):
                if text := choice["delta"].get("content"):
                    first = first or time.perf_counter() - began
                    parts.append(text)
    whole = time.perf_counter() - began
    return Answer(whole, first or whole, "".join(parts), tokens, failed)


async def wave(client: httpx.AsyncClient, url: str, model: str, tasks: Sequence[Task], length: int) -> list[Answer]:
    return list(await asyncio.gather(*(ask(client, url, model, task, length) for task in tasks)))


async def measure(pairs: Sequence[Pair], of: dict[str, list[Task]], args: argparse.Namespace) -> None:
    async with httpx.AsyncClient(timeout=600) as client:
        models = {url: await model_of(client, url) for pair in pairs for url in pair.urls}
        for url in models:
            await wave(client, url, models[url], [Task(WARM)], 16)
        turn = 0
        for slots in args.slots:
            for length in args.lengths:
                few = count(args, length, slots)
                for begin in range(0, few, slots):
                    for kind, all_tasks in of.items():
                        if tasks := all_tasks[:few][begin : begin + slots]:
                            await turns(client, pairs, models, kind, tasks, length, turn)
                            turn += 1


async def turns(
    client: httpx.AsyncClient, pairs: Sequence[Pair], models: dict[str, str], kind: str, tasks: Sequence[Task],
    length: int, turn: int,
) -> None:  # fmt: skip
    """One wave of chats at every server, one server after another."""
    order = [*pairs[turn % len(pairs) :], *pairs[: turn % len(pairs)]]
    for pair in order:
        swapped = turn // len(pairs) % 2
        found = {url: await wave(client, url, models[url], tasks, length) for url in pair.urls[:: -1 if swapped else 1]}
        for plain, drafted in zip(*(found[url] for url in pair.urls), strict=True):
            pair.answers.append((kind, length, len(tasks), plain, drafted))


async def model_of(client: httpx.AsyncClient, url: str) -> str:
    """The first model that a server lists."""
    response = await client.get(f"{url}/v1/models")
    name: str = response.json()["data"][0]["id"]
    return name


def report(pair: Pair) -> dict[str, Any]:
    """Ratios and rates of an engine's pair, by requests at once, kind and length."""
    rows = [
        {label: value} | _numbers([answer for answer in pair.answers if answer[column] == value])
        for column, label in ((2, "at once"), (0, "kind"), (1, "length"))
        for value in dict.fromkeys(answer[column] for answer in pair.answers)
    ]
    raw = [
        [kind, length, slots, *(round(x, 4) for x in (plain.whole, plain.first, drafted.whole, drafted.first)),
         plain.tokens, drafted.tokens, plain.text == drafted.text]
        for kind, length, slots, plain, drafted in pair.answers
    ]  # fmt: skip
    failures = [answer.failed for *_, plain, drafted in pair.answers for answer in (plain, drafted) if answer.failed]
    return {"engine": pair.name, "all": _numbers(pair.answers), "rows": rows, "raw": raw, "failures": failures}


def _numbers(answers: Sequence[tuple[str, int, int, Answer, Answer]]) -> dict[str, Any]:
    both = [(plain, drafted) for *_, plain, drafted in answers if not (plain.failed or drafted.failed)]
    same = [(plain, drafted) for plain, drafted in both if plain.text == drafted.text]
    decoding = [
        ((plain.whole - plain.first) / (plain.tokens - 1)) / ((drafted.whole - drafted.first) / (drafted.tokens - 1))
        for plain, drafted in both
        if min(plain.tokens, drafted.tokens) > 1 and min(drafted.whole - drafted.first, plain.whole - plain.first) > 0
    ]
    return {
        "requests": len(both),
        "failed": len(answers) - len(both),
        "same": len(same),
        "whole": summary([plain.whole / drafted.whole for plain, drafted in both]),
        "decoding": summary(decoding),
        "first": summary([plain.first / drafted.first for plain, drafted in both]),
        "plain_tokens_per_s": statistics.median([plain.tokens / plain.whole for plain, _ in both] or [math.nan]),
        "drafted_tokens_per_s": statistics.median(
            [drafted.tokens / drafted.whole for _, drafted in both] or [math.nan]
        ),
    }


def table(found: Sequence[dict[str, Any]]) -> list[str]:
    names = "whole", "decoding", "first"
    heading = "".join(f"{name:>20}" for name in ("whole", "decoding alone", "first text"))
    lines = [f"{'plain / with drafts':26}{heading}{'tokens/s':>14}{'same':>12}"]
    for engine in found:
        for row in [engine["all"], *engine["rows"]]:
            key = next((key for key in ("at once", "kind", "length") if key in row), "")
            label = f"{row[key]} {key}".removesuffix(" kind") if key else engine["engine"]
            cells = [[row[name].get(part, float("nan")) for part in ("mean", "p50", "p10")] for name in names]
            ratios = "".join(f"{' / '.join(f'{ratio:.2f}' for ratio in cell):>20}" for cell in cells)
            rates = f"{row['plain_tokens_per_s']:.0f}, {row['drafted_tokens_per_s']:.0f}"
            lines.append(f"{label:26}{ratios}{rates:>14}{row['same']:>6} of {row['requests']}")
        lines += [f"broken off: {why}" for why in engine["failures"]] + [""]
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=PLAIN_URL,DRAFTS_URL")
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--kinds", nargs="+", help=f"some of {', '.join([*CATEGORIES, 'code edit', 'JSON'])}")
    parser.add_argument("--slots", type=int, nargs="+", default=[1])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--requests", type=int, default=6, help="of a cell; half of them above 256 tokens")
    parser.add_argument("--json", action="store_true", help="with every request's seconds")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    pairs = []
    for server in args.server:
        name, _, urls = server.partition("=")
        plain, _, drafted = urls.partition(",")
        if not drafted:
            raise SystemExit(f"--server {server}: give NAME=PLAIN_URL,DRAFTS_URL")
        pairs.append(Pair(name, (plain.rstrip("/"), drafted.rstrip("/"))))
    most = max(count(args, length, slots) for length in args.lengths for slots in args.slots)
    of = questions_of(args.questions, most)
    asyncio.run(measure(pairs, {kind: of[kind] for kind in args.kinds or of}, args))
    engines = [report(pair) for pair in pairs]
    made = {"processor": processor_name(), "date": datetime.date.today().isoformat()}
    shown = (
        json.dumps(made | {"engines": engines}) if args.json else "\n".join([*table(engines), ", ".join(made.values())])
    )
    print(shown)


if __name__ == "__main__":
    main()
