"""Requests to a server of any kind, and its answers: what a golden file holds of them, and how they are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from outrider.errors import ConfigError

__all__ = ["Answer", "Exchange", "compare", "golden_lines", "read_exchange"]

FORMAT = "outrider-golden-http 1"


@dataclass
class Answer:
    """One choice of an answer, whole or put together from a stream."""

    text: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """Name and arguments of each call; ids are drawn by servers, and left out."""
    finish_reason: str | None = None
    tokens: list[str] = field(default_factory=list)
    """Empty where the server gives no log-probabilities."""
    likeliest: list[dict[str, float]] = field(default_factory=list)
    """Of each token: log-probabilities of the likeliest, by text."""

    def add(self, choice: Mapping[str, Any]) -> None:
        """Add a choice of an answer, or of a chunk of a stream."""
        said = choice.get("message") or choice.get("delta") or {}
        self.text += said.get("content") or choice.get("text") or ""
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        for place, call in enumerate(said.get("tool_calls") or ()):
            index = call.get("index", place)
            while len(self.tool_calls) <= index:
                self.tool_calls.append({"name": "", "arguments": ""})
            for name, value in (call.get("function") or {}).items():
                if name in ("name", "arguments"):
                    self.tool_calls[index][name] += value or ""
        rows = choice.get("logprobs") or {}
        for row in rows.get("content") or ():
            self.tokens.append(row["token"])
            self.likeliest.append({one["token"]: one["logprob"] for one in row.get("top_logprobs") or ()})
        self.tokens += rows.get("tokens") or ()
        self.likeliest += [dict(row or {}) for row in rows.get("top_logprobs") or ()]


@dataclass
class Exchange:
    """A request as the agent sent it, and the answers to it."""

    path: str
    request: dict[str, Any]
    seed: int
    """That the request was sent on with."""
    answers: list[Answer] = field(default_factory=list)
    format: str = FORMAT

    def add(self, part: Mapping[str, Any]) -> None:
        """Add an answer, or a chunk of one."""
        for choice in part.get("choices") or ():
            index = choice.get("index", 0)
            while len(self.answers) <= index:
                self.answers.append(Answer())
            self.answers[index].add(choice)


def golden_lines(found: Sequence[Exchange]) -> list[dict[str, Any]]:
    """The lines of a golden file."""
    return [asdict(_renamed(one)) for one in found]


def read_exchange(text: str, where: str) -> Exchange:
    """A line of a golden file. Raises ConfigError for anything else."""
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise KeyError(found["format"])
        return Exchange(**found | {"answers": [Answer(**one) for one in found["answers"]]})
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: it is no golden conversation with a server: {error}") from None


def compare(golden: Sequence[Exchange], found: Sequence[Exchange]) -> str:
    """The first difference, in lines of text; "" if there is none."""
    left = list(golden)
    for number, now in enumerate(map(_renamed, found), 1):
        then = next((one for one in left if _asked(one) == _asked(now)), None)
        if then is None:
            expected = f"\n  golden request: {_shown(left[0].request)}" if left else "\n  there are no more golden ones"
            return (
                f"conversation {number} is none of the golden ones{expected}\n  request here:   {_shown(now.request)}"
            )
        left.remove(then)
        for old, new in zip(then.answers, now.answers, strict=False):
            if (difference := _difference(old, new)) is not None:
                return f"conversation {number}: {difference}"
        if len(then.answers) != len(now.answers):
            return f"conversation {number}: {len(then.answers)} golden answers, {len(now.answers)} here"
    if left:
        return f"{len(left)} of {len(golden)} golden conversations were not held; the first: {_shown(left[0].request)}"
    return ""


def _asked(one: Exchange) -> tuple[str, Mapping[str, Any], int]:
    return one.path, one.request, one.seed


def _difference(then: Answer, now: Answer) -> str | None:
    if (then.text, then.tool_calls, then.finish_reason) == (now.text, now.tool_calls, now.finish_reason):
        return None
    sides = (then, now)
    if all(side.tokens for side in sides):
        old, new = then.tokens, now.tokens
        at = _first(old, new)
        what = [f"token {at + 1} differs: {_at(old, at)!r} became {_at(new, at)!r}"]
        rows = [side.likeliest[at] if at < len(side.likeliest) else {} for side in sides]
        shown = [", ".join(f"{token!r} {value:.4f}" for token, value in row.items()) or "not given" for row in rows]
        what += [f"  golden log-probabilities: {shown[0]}", f"  log-probabilities here:   {shown[1]}"]
    else:
        at = _first(then.text, now.text)
        what = [f"character {at + 1} differs; the server gives no tokens"]
    for name, one in zip(("golden", "here"), sides, strict=True):
        calls = f", calls {json.dumps(one.tool_calls, ensure_ascii=False)}" if one.tool_calls else ""
        what.append(f"  {name}: {one.text!r}{calls}, finish_reason {one.finish_reason!r}")
    return "\n".join(what)


def _first(old: Sequence[str], new: Sequence[str]) -> int:
    pairs = zip(old, new, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def _at(tokens: Sequence[str], place: int) -> str:
    return tokens[place] if place < len(tokens) else "the end"


def _renamed(one: Exchange) -> Exchange:
    """With the ids of tool calls, which servers draw, numbered in order."""
    names: dict[str, str] = {}

    def walk(value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            is_call = "function" in value and "id" in value
            return {k: walk(v, "tool_call_id" if is_call and k == "id" else k) for k, v in value.items()}
        if isinstance(value, list):
            return [walk(each) for each in value]
        return names.setdefault(value, f"call-{len(names) + 1}") if key == "tool_call_id" else value

    return Exchange(one.path, walk(one.request), one.seed, one.answers)


def _shown(request: Mapping[str, Any]) -> str:
    text = json.dumps(request, ensure_ascii=False)
    return text if len(text) <= 400 else f"{text[:200]} … {text[-200:]}"
