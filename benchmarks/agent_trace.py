"""An agent's day at a server: what is read again, how long the first token of each turn takes, and a picture of it.

    python -m benchmarks.agent_trace URL [--turns 20] [--system 4000] [--tools] [--plot trace.png] [--json]

URL is an OpenAI-compatible server (``outrider serve``, llama-server, vLLM). Two agents work side by side. They share a
system prompt of thousands of tokens with tools. Every turn appends a reply, a tool's result or a question. In the
middle agent one edits its last question, and agent two drops all but a summary and its last question (compaction).
``--tools`` sends the tools in the field of that name, and not in the system prompt; a model whose template knows none
can have ``agent_template.jinja``.

Replies are scripted, so that all servers read the same prompts, whatever they answer: answers are made, timed, and
dropped. ``--own-replies`` keeps the server's own. An answer that the server breaks off (an error in place of it, or in
its stream) is named, counted, and replaced by the scripted reply; its times are left out.

``read``: prompt tokens that the server says it computed. ``new``: those whose past no prompt answered before had, by
the server's own ``/tokenize`` (and llama.cpp's ``/apply-template``), asked when all is over. What was read beyond that
was read twice. ``drafted``: tokens of the answer that came from drafts, where the server says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.agent_picture import plot
from benchmarks.agent_texts import Agent, Messages, is_json, system_prompt, tools_of


@dataclass
class Turn:
    """One request."""

    agent: int
    turn: int
    note: str = ""
    began: float = 0.0  # seconds since the trace began
    first: float | None = None  # seconds to the first token; None: none came
    whole: float = 0.0
    prompt: int = 0  # tokens
    read: int | None = None  # tokens; None: the server does not say
    new: int | None = None
    made: int = 0  # tokens of the answer
    drafted: int | None = None  # of them from drafts; None: the server does not say
    failed: str = ""  # why the answer broke off


def count_new(prompts: Sequence[tuple[float, float, Sequence[int]]]) -> list[int]:
    """Of each prompt (began, ended, its tokens) those whose past no prompt that had ended before it began has.

    The last token of a prompt is always new: it is computed to answer.
    """
    found = []
    for began, _, tokens in prompts:
        shared = max((common(tokens, other) for _, ended, other in prompts if ended <= began), default=0)
        found.append(len(tokens) - min(shared, len(tokens) - 1))
    return found


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


async def tokens_of(client: httpx.AsyncClient, model: str, messages: Messages, tools: Messages) -> list[int] | None:
    """The tokens of a conversation, if the server tells them."""
    body: dict[str, Any] = {"model": model, "messages": messages} | ({"tools": tools} if tools else {})
    rendered = await client.post("/apply-template", json=body)  # llama.cpp's /tokenize knows no messages
    if rendered.status_code == 200:
        body = {"content": rendered.json()["prompt"], "add_special": True, "parse_special": True}
    answer = await client.post("/tokenize", json=body)
    found = answer.json().get("tokens") if answer.status_code == 200 else None
    return found if isinstance(found, list) and found else None


async def ask(client: httpx.AsyncClient, body: dict[str, Any], turn: Turn) -> dict[str, Any]:
    """Stream one answer, and time it: the message. What broke it off is ``turn.failed``."""
    said, calls, start = "", dict[int, dict[str, Any]](), time.perf_counter()
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                turn.failed = f"HTTP {answer.status_code}: {(await answer.aread()).decode(errors='replace')[:200]}"
            async for line in answer.aiter_lines():
                if not line.startswith(("data: {", "error: {")):
                    continue
                event = json.loads(line.partition(": ")[2])
                if line.startswith("error") or event.get("error"):
                    turn.failed = str(event.get("error", event))[:200]
                for choice in event.get("choices", []):
                    delta = choice.get("delta") or {}
                    text, pieces = delta.get("content") or "", delta.get("tool_calls") or ()
                    if (text or pieces) and turn.first is None:
                        turn.first = time.perf_counter() - start
                    said += text
                    _add_calls(calls, pieces)
                _note_usage(turn, event)
    except httpx.HTTPError as error:
        turn.failed = f"{type(error).__name__}: {error}"
    turn.whole = time.perf_counter() - start
    turn.first = turn.whole if turn.first is None and not turn.failed else turn.first  # an answer without text
    whole = [call for call in calls.values() if is_json(call["function"]["arguments"])]  # servers refuse cut ones
    return {"role": "assistant", "content": said} | ({"tool_calls": whole} if whole else {})


def _add_calls(calls: dict[int, dict[str, Any]], pieces: Sequence[dict[str, Any]]) -> None:
    """Put the pieces of streamed calls together."""
    for piece in pieces:
        place = piece.get("index", 0)
        call = calls.setdefault(place, {"id": f"call_{place}", "type": "function",
                                        "function": {"name": "", "arguments": ""}})  # fmt: skip
        call["id"] = piece.get("id") or call["id"]
        for key, text in (piece.get("function") or {}).items():
            call["function"][key] += text or ""


def _note_usage(turn: Turn, event: dict[str, Any]) -> None:
    """The tokens that servers say they read and made: OpenAI's usage, or llama.cpp's timings."""
    if usage := event.get("usage"):
        turn.prompt, turn.made = usage["prompt_tokens"], usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        if details.get("cached_tokens") is not None:
            turn.read = turn.prompt - details["cached_tokens"]
    if (timings := event.get("timings")) and "prompt_n" in timings:
        turn.read, turn.drafted = timings["prompt_n"], timings.get("draft_n_accepted", 0)


async def converse(
    client: httpx.AsyncClient, agent: Agent, args: argparse.Namespace, began: float
) -> list[tuple[Turn, Messages]]:
    """All turns of an agent, each with its prompt."""
    turns = []
    for number in range(args.turns):
        turn = Turn(agent.number, number, agent.ask(number, args.turns), time.perf_counter() - began)
        turns.append((turn, agent.messages))
        body = {
            "model": args.model, "messages": agent.messages, "max_tokens": args.max_tokens, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True},
        } | ({"tools": agent.tools} if agent.tools else {})  # fmt: skip
        said, scripted = await ask(client, body, turn), agent.reply(number)
        agent.messages = [*agent.messages, said if args.own_replies and not turn.failed else scripted]
        if not args.json:
            shown = "none" if turn.first is None else f"{turn.first:.2f} s"
            print(f"agent {turn.agent} turn {number:2} {turn.prompt:6} tokens, {turn.read} read, first {shown}, "
                  f"whole {turn.whole:.2f} s, {turn.made} made, {turn.drafted} drafted {turn.note} {turn.failed}",
                  flush=True)  # fmt: skip
    return turns


async def trace(args: argparse.Namespace, client: httpx.AsyncClient) -> list[Turn]:
    """Both agents' turns at a server, agent by agent."""
    while (await client.get("/health")).status_code == 503:  # the model is being loaded
        await asyncio.sleep(0.5)
    args.model = (await client.get("/v1/models")).json()["data"][0]["id"]
    warm = {"model": args.model, "messages": [{"role": "user", "content": "Name a colour."}], "max_tokens": 8}
    await ask(client, warm | {"stream": True}, Turn(0, 0))
    tools = tools_of()
    rules = {"role": "system", "content": system_prompt(args.system, [] if args.tools else tools, args.seed)}
    agents = [
        Agent(i, random.Random(100 * args.seed + i), [rules], tools if args.tools else []) for i in range(args.agents)
    ]
    began = time.perf_counter()
    made = await asyncio.gather(*(converse(client, agent, args, began) for agent in agents))
    asked = [each for turns in made for each in turns]
    tokens = [await tokens_of(client, args.model, messages, agents[0].tools) for _, messages in asked]
    turns = [turn for turn, _ in asked]
    known = [ids for ids in tokens if ids is not None]
    if len(known) == len(turns):
        times = [(turn.began, turn.began + turn.whole, ids) for turn, ids in zip(turns, known, strict=True)]
        for turn, ids, new in zip(turns, known, count_new(times), strict=True):
            turn.new, turn.prompt = new, turn.prompt or len(ids)
    return turns


def summary(turns: Sequence[Turn]) -> dict[str, Any]:
    """The figures of a trace, without each agent's first turn where times to the first token are compared."""
    later = sorted(turn.first for turn in turns if turn.turn > 0 and turn.first is not None and not turn.failed)
    first = sorted(turn.first for turn in turns if turn.turn == 0 and turn.first is not None)
    known = [turn for turn in turns if turn.read is not None and turn.new is not None]
    return {
        "turns": len(turns),
        "failed": sum(bool(turn.failed) for turn in turns),
        "prompt_tokens": sum(turn.prompt for turn in turns),
        "read": sum(turn.read or 0 for turn in turns) if any(turn.read is not None for turn in turns) else None,
        "read_unknown_turns": sum(turn.read is None for turn in turns),
        "new": sum(turn.new or 0 for turn in turns) if any(turn.new is not None for turn in turns) else None,
        "read_twice": sum(max(0, (turn.read or 0) - (turn.new or 0)) for turn in known) if known else None,
        "made": sum(turn.made for turn in turns),
        "drafted": sum(turn.drafted or 0 for turn in turns) if any(t.drafted is not None for t in turns) else None,
        "begin_first_token_s": [round(seconds, 2) for seconds in first],
        "first_token_median_s": round(statistics.median(later), 3) if later else None,
        "first_token_p90_s": round(later[math.ceil(0.9 * len(later)) - 1], 3) if later else None,
        "first_token_worst_s": round(later[-1], 3) if later else None,
        "wall_s": round(max(turn.began + turn.whole for turn in turns), 2),
    }


async def _trace_url(args: argparse.Namespace) -> list[Turn]:
    once = httpx.Limits(max_keepalive_connections=0)  # llama-server drops idle connections without a word
    async with httpx.AsyncClient(base_url=args.url.removesuffix("/v1"), timeout=3600, limits=once) as client:
        return await trace(args, client)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--system", type=int, default=4000, help="words of the system prompt, of 1.2 tokens each")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1, help="of all texts: another one shares no long prefix")
    parser.add_argument("--tools", action="store_true", help="send the tools in the field of that name")
    parser.add_argument("--own-replies", action="store_true", help="keep the server's answers, so that prompts differ")
    parser.add_argument("--name", default="", help="of the server, in the picture")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(given)


def main() -> None:
    args = arguments()
    turns = asyncio.run(_trace_url(args))
    if args.plot:
        plot(turns, args.plot, f"{args.name}: " if args.name else "")
    if args.json:
        json.dump({"name": args.name, "summary": summary(turns), "turns": [asdict(turn) for turn in turns]}, sys.stdout)
        print()
    else:
        print("\n".join(f"{name:22} {value}" for name, value in summary(turns).items()))


if __name__ == "__main__":
    main()
