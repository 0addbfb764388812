"""Tool calls with drafts beside tool calls without, streamed beside whole, many at once: the findings as checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from outrider_lab.certify.report import Check, Status
from outrider_lab.certify.tool_calls.answers import Answer, ChatClient
from outrider_lab.certify.tool_calls.cases import KINDS, Case, make_cases
from outrider_lab.certify.tool_calls.faults import faults_of
from outrider_lab.measure import Expect, Tick

__all__ = ["ToolSuite", "check_tool_calls"]

CONTROLS = 16  # cases that the baseline answers a second time, one after the other
SHOWN_FAILURES, KEPT_FAILURES = 5, 100  # of each check: in the report, and in its data
SHOWN_CHARACTERS = 400

Answers = list[Answer]


@dataclass(frozen=True)
class ToolSuite:
    """The suite's size and options."""

    calls: int = 1000
    at_once: int = 32
    seed: int = 0
    sources: Sequence[str] = ()
    """Sources of drafts that requests name (Outrider's ``speculation``); empty: the server's own."""
    notation: str | None = None
    """See ``notations``."""
    tokens: int = 128
    """The most of an answer that nothing forces."""


@dataclass(frozen=True)
class _Failure:
    case: Case
    fault: str
    answer: Answer
    baseline: Answer | None

    def line(self) -> str:
        parts = {"request": str(dict(self.case.body)), "answer": self.answer.shown}
        if self.baseline is not None:
            parts["without drafts"] = self.baseline.shown
        shown = "; ".join(f"{key} {text[:SHOWN_CHARACTERS]}" for key, text in parts.items())
        return f"{self.case.name}: {self.fault}: {shown}"

    def as_data(self) -> dict[str, Any]:
        without = None if self.baseline is None else self.baseline.shown
        request = {"case": self.case.index, "kind": self.case.kind, "request": dict(self.case.body)}
        return request | {"fault": self.fault, "answer": self.answer.shown, "without_drafts": without}


def check_tool_calls(
    endpoint: str,
    baseline: str | None,
    suite: ToolSuite,
    *,
    model: str | None = None,
    tick: Tick = lambda _: None,
    expect: Expect = lambda _: None,
) -> Iterator[Check]:
    """Ask ``endpoint`` every case, whole and streamed, with each source of drafts; each check as soon as it is made.

    The answers without drafts come from ``baseline``, or, where that is None, from requests that turn drafts off. A
    server that knows no such requests is judged without them.

    Args:
        model: the model's name on both servers; None: the first model that each server lists.
    """
    client = ChatClient.of(endpoint, model)
    cases = make_cases(suite.calls, suite.seed, notation=suite.notation, tokens=suite.tokens)
    plain = ChatClient.of(baseline, model) if baseline is not None else client if client.turns_drafts_off() else None
    off: Mapping[str, Any] = {} if baseline is not None else {"speculation": "off"}
    controls = cases[:: max(1, len(cases) // CONTROLS)]
    sources: Sequence[str | None] = list(suite.sources) or [None]
    expect(2 * len(cases) * len(sources) + (0 if plain is None else len(cases) + len(controls)))
    session = _Session(cases, suite.at_once, tick)
    base: Answers | None = None
    steady = True
    if plain is not None:
        base = session.ask("without drafts", cases, lambda case: plain.whole({**case.body, **off}))
        again = session.ask(
            "without drafts, alone", controls, lambda case: plain.whole({**case.body, **off}), at_once=1
        )
        changed = [case for case, found in zip(controls, again, strict=True) if base[case.index] != found]
        steady = not changed
        yield _validity("without drafts", cases, base, None)
        yield _control(controls, changed)
    else:
        yield _no_baseline()
    for source in sources:
        whole, streamed = session.ask_both(client, source, base)
        yield from _checks(source or "drafts", cases, whole, streamed, base, steady)


class _Session:
    def __init__(self, cases: Sequence[Case], at_once: int, tick: Tick) -> None:
        self._cases, self._at_once, self._tick = cases, at_once, tick

    def ask(
        self, what: str, cases: Sequence[Any], answer: Callable[[Any], Answer], *, at_once: int | None = None
    ) -> Answers:
        """The answers to ``cases``, many at a time, in order."""

        def one(case: Any) -> Answer:
            found = answer(case)
            self._tick(what)
            return found

        pool = ThreadPoolExecutor(at_once or self._at_once)
        try:
            return list(pool.map(one, cases))
        finally:
            pool.shutdown(cancel_futures=True)

    def ask_both(self, client: ChatClient, source: str | None, base: Answers | None) -> tuple[Answers, Answers]:
        """The whole and the streamed answer to every case, side by side."""

        def one(job: tuple[Case, bool]) -> Answer:
            case, stream = job
            body = dict(case.body) | _drafting(source, base[case.index] if base is not None else None)
            return client.streamed(body) if stream else client.whole(body)

        jobs = [(case, stream) for case in self._cases for stream in (False, True)]
        found = self.ask(source or "with drafts", jobs, one)
        return found[::2], found[1::2]


def _drafting(source: str | None, baseline: Answer | None) -> dict[str, Any]:
    """Fields that name a source of drafts; predictions expect the answer without drafts."""
    if source is None:
        return {}
    fields: dict[str, Any] = {"speculation": {"draft": source}}
    if "prediction" in source.split("+"):
        expected = baseline or Answer()
        calls = "".join(f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in expected.calls)
        fields["prediction"] = {"type": "content", "content": expected.content + calls or "none"}
    return fields


def _no_baseline() -> Check:
    return Check(
        "tool calls: baseline",
        "note",
        "requests cannot turn drafts off here, and no second server is named (--baseline): answers are compared with "
        "none without drafts",
    )


def _control(controls: Sequence[Case], changed: Sequence[Case]) -> Check:
    if not changed:
        return Check("tool calls: control", "pass", f"{len(controls)} answers without drafts repeat, alone")
    names = ", ".join(case.name for case in changed)
    return Check(
        "tool calls: control",
        "note",
        f"{len(changed)} of {len(controls)} answers without drafts differ when they are asked for alone: {names}; "
        "differences with drafts prove nothing then",
        data={"changed": len(changed)},
    )


def _checks(
    source: str, cases: Sequence[Case], whole: Answers, streamed: Answers, base: Answers | None, steady: bool
) -> list[Check]:
    checks = [
        _validity(f"{source}, whole", cases, whole, base),
        _validity(f"{source}, streamed", cases, streamed, base),
    ]
    asked = [(case, a, b) for case, a, b in zip(cases, streamed, whole, strict=True) if not (a.refused and b.refused)]
    checks.append(_equality(f"{source}: streams", asked, "the whole answer's", base, steady))
    if base is not None:
        pairs = [
            (case, found, base[case.index])
            for case, *both in zip(cases, whole, streamed, strict=True)
            for found in both
            if not (found.refused and base[case.index].refused)
        ]
        checks.append(_equality(f"{source}: drafts", pairs, "those without drafts", base, steady))
    accepted = [answer.accepted for answer in (*whole, *streamed) if answer.accepted is not None]
    if accepted and not sum(accepted):
        checks.append(
            Check(f"tool calls, {source}: acceptance", "note", "no draft token was accepted: little is tested")
        )
    elif accepted:
        checks[-1].data["accepted_draft_tokens"] = sum(accepted)
    return checks


def _validity(what: str, cases: Sequence[Case], found: Answers, base: Answers | None) -> Check:
    """Corrupted calls. Faults of calls that nothing forced are the model's own where they are the same without drafts.

    ``base``: None where these answers are without drafts, or where there are none without.
    """
    failures: list[_Failure] = []
    own: list[_Failure] = []
    for case, answer in zip(cases, found, strict=True):
        without = base[case.index] if base is not None else None
        if faults := faults_of(case, answer):
            free = not case.forced and case.form is None and not answer.broken
            kind = own if free and without in (None, answer) else failures
            kind.append(_Failure(case, "; ".join(faults), answer, without))
    refused = Counter(case.kind for case, answer in zip(cases, found, strict=True) if answer.refused)
    calls, cut = sum(len(answer.calls) for answer in found), sum(answer.finish == "length" for answer in found)
    answered = len(cases) - refused.total()
    summary = f"{len(failures)} of {answered} answers with {calls} calls are corrupted"
    summary += f"; {cut} are cut by max_tokens" * bool(cut) + f"; {len(own)} with the model's own mistakes" * bool(own)
    details = [failure.line() for failure in (failures or own)[:SHOWN_FAILURES]]
    for kind_name, count in refused.items():
        reason = next(a.refused for c, a in zip(cases, found, strict=True) if c.kind == kind_name and a.refused)
        details.append(f"{count} requests are refused ({kind_name}: {KINDS[kind_name]}): {reason[:SHOWN_CHARACTERS]}")
    untested = refused.total() > answered
    summary += "; most requests are refused, and little is tested" * untested
    status: Status = "fail" if failures or untested else "note" if refused or own else "pass"
    data = {"answers": answered, "calls": calls, "corrupted": len(failures), "cut": cut, "own": len(own)}
    return Check(f"tool calls, {what}", status, summary, details, data | {"refused": dict(refused)} | _kept(failures))


def _equality(
    what: str, pairs: Sequence[tuple[Case, Answer, Answer]], theirs: str, base: Answers | None, steady: bool
) -> Check:
    """Answers that should be equal. Of a server whose own answers vary, or of drawn tokens, a difference is a note."""
    failures = [
        _Failure(case, f"differs from {theirs} ({other.shown[:SHOWN_CHARACTERS]})", found,
                 base[case.index] if base is not None else None)
        for case, found, other in pairs if found != other
    ]  # fmt: skip
    greedy = [failure for failure in failures if not failure.case.sampled]
    summary = f"{len(pairs) - len(failures)} of {len(pairs)} answers are {theirs}, byte for byte"
    if failures:
        summary += f"; {len(greedy)} greedy ones differ, and {len(failures) - len(greedy)} with a seed"
    if failures and not steady:
        summary += " (the baseline does not repeat its own)"
    status: Status = "pass" if not failures else "fail" if greedy and steady else "note"
    data = {"equal": len(pairs) - len(failures), "pairs": len(pairs), "greedy_differ": len(greedy)}
    return Check(f"tool calls, {what}", status, summary, [f.line() for f in failures[:SHOWN_FAILURES]],
                 data | _kept(failures))  # fmt: skip


def _kept(failures: Sequence[_Failure]) -> dict[str, Any]:
    return {"failures": [failure.as_data() for failure in failures[:KEPT_FAILURES]]} if failures else {}
