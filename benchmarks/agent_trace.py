"""An agent's day at a server: what is read again, how long the first token of each turn takes, and a picture of it.

    python -m benchmarks.agent_trace URL [--turns 20] [--system 4000] [--tools] [--plot trace.png] [--json]

URL is an OpenAI-compatible server (``outrider serve``, llama-server, vLLM). Two agents work side by side. They share a
system prompt of thousands of tokens with tools. Every turn appends the last answer, a tool's result and a question.
Agent one edits its last message in one turn. Agent two drops all but its last turns and a summary in another
(compaction). ``--tools`` sends the tools in the field of that name, and not in the system prompt; a model whose
template knows none can have ``agent_template.jinja``.

``read``: prompt tokens that the server says it computed. ``new``: those whose past no earlier prompt or answer had, by
the server's own ``/tokenize`` (and llama.cpp's ``/apply-template``). The difference was read twice. ``drafted``:
tokens of the answer that came from drafts, where the server says so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.agent_texts import NOUNS, prose, system_prompt, tools_of

Messages = list[dict[str, Any]]


@dataclass
class Turn:
    """One request."""

    agent: int
    turn: int
    began: float  # seconds since the trace began
    first: float = 0.0  # seconds to the first token
    whole: float = 0.0
    prompt: int = 0  # tokens
    read: int | None = None  # tokens; None: the server does not say
    new: int | None = None
    made: int = 0  # tokens of the answer
    drafted: int | None = None  # of them from drafts; None: the server does not say
    note: str = ""


@dataclass
class Agent:
    """A conversation that grows."""

    number: int
    rng: random.Random
    messages: Messages
    tools: Messages
    """The field of that name; empty: none."""
    turns: list[Turn] = field(default_factory=list)

    def ask(self, turn: int, turns: int) -> str:
        """Append what the agent found; what is particular about this turn."""
        note = ""
        if self.number == 0 and turn == turns // 2:
            self.messages = [*self.messages[:-2], {"role": "user", "content": prose(self.rng, 60)}]
            note = "edited"
        elif self.number == 1 and turn == 3 * turns // 4:
            summary = {"role": "user", "content": "So far: " + prose(self.rng, 120)}
            self.messages = [self.messages[0], summary, *self.messages[-2:]]
            note = "compacted"
        result = {
            "path": f"src/{self.rng.choice(NOUNS)}_{turn}.py",
            "lines": prose(self.rng, self.rng.randrange(60, 240)),
        }
        said = f"Result of read_file: {json.dumps(result)}\nWhat next?"
        calls = self.messages[-1].get("tool_calls", ())
        for call in calls:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
        if not calls:
            self.messages.append({"role": "user", "content": said})
        return note


class Seen:
    """All sequences that the server has computed."""

    def __init__(self) -> None:
        self._sequences: list[Sequence[int]] = []

    def new(self, tokens: Sequence[int]) -> int:
        """Tokens whose past differs from that of every earlier one."""
        shared = max((common(tokens, each) for each in self._sequences), default=0)
        return len(tokens) - min(shared, len(tokens) - 1)

    def add(self, tokens: Sequence[int]) -> None:
        self._sequences.append(tokens)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


async def tokens_of(client: httpx.AsyncClient, agent: Agent) -> list[int] | None:
    """The tokens of a conversation, if the server tells them."""
    body: dict[str, Any] = {"messages": agent.messages} | ({"tools": agent.tools} if agent.tools else {})
    rendered = await client.post("/apply-template", json=body)  # llama.cpp's /tokenize knows no messages
    if rendered.status_code == 200:
        body = {"content": rendered.json()["prompt"], "add_special": True, "parse_special": True}
    answer = await client.post("/tokenize", json=body)
    found = answer.json().get("tokens") if answer.status_code == 200 else None
    return found if isinstance(found, list) and found else None


async def ask(client: httpx.AsyncClient, model: str, agent: Agent, turn: Turn, max_tokens: int) -> dict[str, Any]:
    """Stream one answer, and time it: the message."""
    body = {
        "model": model, "messages": agent.messages, "max_tokens": max_tokens, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, **({"tools": agent.tools} if agent.tools else {}),
    }  # fmt: skip
    said, calls, start = "", dict[int, dict[str, Any]](), time.perf_counter()
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise SystemExit(f"the server answers {answer.status_code}: {(await answer.aread())[:300]!r}")
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            for choice in event.get("choices", []):
                delta = choice.get("delta") or {}
                text, pieces = delta.get("content") or "", delta.get("tool_calls") or ()
                if (text or pieces) and not turn.first:
                    turn.first = time.perf_counter() - start
                said += text
                _add_calls(calls, pieces)
            _note_usage(turn, event)
            turn.note += f" {event['error']}"[:80] if event.get("error") else ""
    turn.whole = time.perf_counter() - start
    turn.first = turn.first or turn.whole
    whole = [call for call in calls.values() if _is_json(call["function"]["arguments"])]  # servers refuse cut ones
    return {"role": "assistant", "content": said} | ({"tool_calls": whole} if whole else {})


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


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


async def converse(client: httpx.AsyncClient, agent: Agent, args: argparse.Namespace, seen: Seen, began: float) -> None:
    for number in range(args.turns):
        turn = Turn(agent.number, number, time.perf_counter() - began)
        turn.note = agent.ask(number, args.turns)
        tokens = await tokens_of(client, agent)
        if tokens is not None:
            turn.new = seen.new(tokens)
        turn.began = time.perf_counter() - began
        said = await ask(client, args.model, agent, turn, args.max_tokens)
        if tokens is not None:
            seen.add(tokens)
        agent.messages.append(said)
        agent.turns.append(turn)
        if not args.json:
            print(f"agent {turn.agent} turn {number:2} {turn.prompt:6} tokens, {turn.read} read, {turn.new} new, "
                  f"first {turn.first:6.2f} s, whole {turn.whole:6.2f} s, {turn.made} made, {turn.drafted} drafted "
                  f"{turn.note}", flush=True)  # fmt: skip


async def trace(args: argparse.Namespace) -> list[Turn]:
    tools = tools_of()
    system = {"role": "system", "content": system_prompt(args.system, [] if args.tools else tools)}
    agents = [Agent(i, random.Random(i), [system], tools if args.tools else []) for i in range(args.agents)]
    seen = Seen()
    async with httpx.AsyncClient(base_url=args.url.removesuffix("/v1"), timeout=3600) as client:
        while (await client.get("/health")).status_code == 503:  # the model is being loaded
            await asyncio.sleep(0.5)
        args.model = (await client.get("/v1/models")).json()["data"][0]["id"]
        began = time.perf_counter()
        await asyncio.gather(*(converse(client, agent, args, seen, began) for agent in agents))
    return [turn for agent in agents for turn in agent.turns]


def plot(turns: Sequence[Turn], path: Path) -> None:
    """A waterfall: the wait for the first token, and the tokens after it, those from drafts darker."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 0.22 * len(turns) + 1.2))
    for row, turn in enumerate(sorted(turns, key=lambda each: each.began)):
        color = ("#2a6f97", "#b5651d")[turn.agent % 2]
        answer, behind = turn.whole - turn.first, turn.began + turn.first
        share = (turn.drafted or 0) / max(1, turn.made)
        axes.barh(row, turn.first, left=turn.began, color=color)
        axes.barh(row, answer * share, left=behind, color=color, alpha=0.6)
        axes.barh(row, answer * (1 - share), left=behind + answer * share, color=color, alpha=0.25)
        parts = ["" if turn.read is None else f"{turn.read:,} read", f"{turn.made} made"]
        parts += [f"{turn.drafted} of them drafted"] if turn.drafted else []
        parts += [turn.note] if turn.note else []
        axes.text(turn.began + turn.whole, row, f"  {', '.join(filter(None, parts))}", va="center", fontsize=7)
    axes.invert_yaxis()
    title = "Turns: until the first token (dark), tokens from drafts (middle), other tokens (light)"
    axes.set(xlabel="seconds", yticks=[], title=title)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.margins(x=0.28)
    axes.set_xlim(left=0)
    figure.tight_layout()
    figure.savefig(path, dpi=140)


def summary(turns: Sequence[Turn]) -> dict[str, Any]:
    """The figures of a trace, without each agent's first turn where times to the first token are compared."""
    later = [turn.first for turn in turns if turn.turn > 0]
    known = [turn for turn in turns if turn.read is not None and turn.new is not None]
    return {
        "prompt_tokens": sum(turn.prompt for turn in turns),
        "read": sum(turn.read or 0 for turn in turns) if any(turn.read is not None for turn in turns) else None,
        "read_twice": sum(max(0, (turn.read or 0) - (turn.new or 0)) for turn in known) if known else None,
        "made": sum(turn.made for turn in turns),
        "drafted": sum(turn.drafted or 0 for turn in turns) if any(t.drafted is not None for t in turns) else None,
        "first_token_median_s": round(statistics.median(later), 3),
        "first_token_worst_s": round(max(later), 3),
        "wall_s": round(max(turn.began + turn.whole for turn in turns), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--system", type=int, default=4000, help="words of the system prompt, of 1.5 tokens each")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--tools", action="store_true", help="send the tools in the field of that name")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    turns = asyncio.run(trace(args))
    if args.plot:
        plot(turns, args.plot)
    if args.json:
        json.dump({"summary": summary(turns), "turns": [asdict(turn) for turn in turns]}, sys.stdout, indent=1)
    else:
        for name, value in summary(turns).items():
            print(f"{name:22} {value}")


if __name__ == "__main__":
    main()
