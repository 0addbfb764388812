"""The suite of ``outrider referee`` and of ``outrider certify --endpoint``: its parts, sizes and order."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.errors import ConfigError
from outrider_lab.certify.client import RefusedError, ask, root
from outrider_lab.certify.report import Certificate, Check
from outrider_lab.certify.tool_calls.suite import ToolSuite, check_tool_calls
from outrider_lab.data.workloads import Question
from outrider_lab.measure import Tick
from outrider_lab.referee import sampling, speed, texts
from outrider_lab.referee.budget import Budget
from outrider_lab.referee.pace import fit_tokens
from outrider_lab.referee.session import Session
from outrider_lab.referee.sides import Side, make_sides

__all__ = ["Suite", "run_suite"]

SAMPLED = "Random digits: 4 7 1 9 3 8 2 7 1 4 9 6 3 8 1 7 4 2 9 5 8 3 1 6 7 2 4 9 1 8 5 3 6 7 1 4 9"
"""A prompt whose answers are of a small alphabet; its pairs return, so that sources draft, and are often wrong."""

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


@dataclass(frozen=True)
class Suite:
    """The suite's sizes; each is the most that is asked, and the budget may allow less."""

    tokens: int = 128
    short: int | None = 16
    """Tokens of every second request; None: all are long."""
    loads: Mapping[str, int] = field(default_factory=lambda: {"company of 4": 4, "company of 16": 16})
    control: int = 4
    """Requests of the control at once."""
    samples: int = 16384
    sample_tokens: int = 6
    sample_prompt: str = SAMPLED
    tool_calls: int = 24
    extended: bool = True
    """Also prefixes, biases, streams, tool calls and speed."""
    seconds: float | None = 270.0
    """The budget; None: no limit."""


WEIGHTS = {
    "greedy": 8.0,
    "seeded": 2.0,
    "prefixes": 1.0,
    "biases": 1.0,
    "streams": 1.0,
    "tools": 3.0,
    "samples": 6.0,
    "speed": 0.0,
}
"""Shares of the budget; a part's unused time is shared by the parts behind it."""


def run_suite(
    endpoint: str,
    baseline: str | None,
    questions: Sequence[Question],
    suite: Suite,
    *,
    model: str | None = None,
    tick: Tick = lambda _: None,
) -> Certificate:
    """Compare two servers, or one with its own answers without drafts. Ctrl-C keeps the checks that have ended.

    Args:
        model: the model's name on both servers; None: the first model that each server lists.

    Raises:
        ConfigError: a server cannot be asked.
    """
    started = time.monotonic()
    ours, theirs = make_sides(endpoint, baseline, model)
    share = WEIGHTS["greedy"] / sum(WEIGHTS.values())
    seconds = math.inf if suite.seconds is None else share * suite.seconds
    first = {"prompt": questions[0].text, "temperature": 0}
    tokens = fit_tokens(ours, theirs, first, suite.tokens, suite.short or suite.tokens, seconds)
    requests = [
        (name, {"prompt": prompt, "max_tokens": min(suite.short, tokens) if suite.short and i % 2 else tokens,
                "temperature": 0})
        for i, (name, prompt) in enumerate(_distinct(questions))
    ]  # fmt: skip
    if suite.seconds is not None:
        suite = replace(suite, seconds=max(0.0, suite.seconds - (time.monotonic() - started)))
    parts = _parts(ours, theirs, requests, suite, tick)
    checks: list[Check] = []
    complete = True
    try:
        for name, part in parts:
            try:
                for check in part:  # one by one: those before an interruption are kept
                    checks.append(check)  # noqa: PERF402
            except ConfigError as error:
                if not checks:
                    raise  # it never answered
                checks.append(Check(f"{name}: the end", "fail", f"the server stopped answering: {error}"))
    except KeyboardInterrupt:
        complete = False
    checks.sort(key=lambda check: not check.name.startswith("control"))
    subject = {
        "endpoint": endpoint,
        "baseline": theirs.url if theirs.url != ours.url or theirs.fields else "the endpoint itself, with drafts",
        "model": ours.model,
        "prompts": len(questions),
        "tokens": tokens if tokens == suite.tokens else f"{tokens} (the time allowed no {suite.tokens})",
    }
    if theirs.fields:
        subject["baseline"] = "the endpoint, with drafts turned off per request"
    return Certificate(subject, checks, complete)


def _distinct(questions: Sequence[Question]) -> Iterator[tuple[str, str]]:
    """Names and prompts; a question that is there again, as few are built in, gets other words before it."""
    seen: Counter[str] = Counter()
    for question in questions:
        again = seen[question.text]
        seen[question.text] += 1
        words = "Once more, in other words. " * again
        yield f"{question.id}, again" if again else question.id, words + question.text


def _parts(
    ours: Side, theirs: Side, requests: Sequence[tuple[str, Mapping[str, Any]]], suite: Suite, tick: Tick
) -> Iterator[tuple[str, Iterator[Check]]]:
    parts: dict[str, Callable[[Session], Iterator[Check]]] = {
        "greedy": lambda s: texts.greedy(s, suite.loads, suite.control),
        "seeded": texts.seeded,
    }
    if suite.extended:
        parts |= {"prefixes": texts.prefixes, "biases": texts.biased, "streams": texts.streams}
        parts |= {"tools": lambda s: _tools(s, suite.tool_calls), "speed": speed.speed}
    # Last, as more time is more power: it has the time that the others left.
    parts["samples"] = lambda s: sampling.frequencies(s, suite.sample_prompt, suite.samples, suite.sample_tokens)
    session = Session(ours, theirs, requests, Budget(suite.seconds, sum(WEIGHTS[name] for name in parts)), tick)
    budget = session.budget
    for name, part in parts.items():
        budget.begin(WEIGHTS[name])
        yield name, part(session)


def _tools(session: Session, most: int) -> Iterator[Check]:
    """Tool calls and JSON, as many as the time of greedy answers lets expect to fit."""
    name = "tool calls"
    probe = {"model": session.ours.model, "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
    try:
        ask(f"{root(session.ours.url)}/chat/completions", probe)
    except ConfigError as error:
        yield Check(name, "note", f"not tested: {str(error)[:200]}", data={"compared": 0})
        return
    each = max((a.found.seconds for a in session.alone), default=0.0)  # a call takes about a long answer's time
    fit = most if math.isinf(session.budget.left) or not each else int(session.budget.left / (4 * each))
    if not (count := min(most, fit)):
        yield Check(name, "note", "not tested: no time was left", data={"compared": 0})
        return
    separate = session.theirs.url if session.theirs.url != session.ours.url else None
    model = session.ours.model if session.ours.model == session.theirs.model else None
    try:
        ask(f"{root(session.ours.url)}/chat/completions", {**probe, "tools": [TOOL]})
        knows_tools = True
    except RefusedError:
        knows_tools = False  # the suite's requests for JSON remain
    suite = ToolSuite(count, min(4, count))
    for check in check_tool_calls(session.ours.url, separate, suite, model=model, tick=session.tick):
        if not knows_tools and check.status == "fail" and not check.data.get("corrupted", 1):
            yield replace(check, status="note", details=check.details[:1])
        else:
            yield check
    if count < most:
        yield Check(f"{name}, time", "pass", f"the time allowed {count} of {most} requests")
