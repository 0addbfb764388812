"""The requests that a session has made, and the answers that later parts compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider_lab.certify.report import Check, Status
from outrider_lab.certify.statistics import detectable_rate
from outrider_lab.measure import Tick
from outrider_lab.referee.budget import Budget
from outrider_lab.referee.forks import Fork, find_fork
from outrider_lab.referee.sides import Reply, Side

__all__ = ["Asked", "Session", "compared"]


@dataclass(frozen=True)
class Asked:
    """A request with a name, and its two answers; the baseline's is the one of the request alone."""

    name: str
    request: Mapping[str, Any]
    base: Reply
    found: Reply


@dataclass
class Session:
    """What all parts share."""

    ours: Side
    theirs: Side
    requests: Sequence[tuple[str, Mapping[str, Any]]]
    """Greedy requests, with their names."""
    budget: Budget
    tick: Tick = lambda _: None
    alone: list[Asked] = field(default_factory=list)
    """The greedy requests, alone: the answers that other parts compare with."""

    def shortened(self, asked: int, wanted: int) -> str:
        """A word on a part that asked less than it wanted."""
        return "" if asked >= wanted else f"; the time allowed {asked} of {wanted}"

    def both(
        self, requests: Sequence[tuple[str, Mapping[str, Any]]], what: str, into: list[Asked] | None = None
    ) -> list[Asked]:
        """Both answers to each request, alone, the sides taking turns, until the part's time is over.

        ``into`` is filled and returned; after an interruption it holds the requests that both sides answered.
        """
        done: list[Asked] = [] if into is None else into
        for index, (name, request) in enumerate(requests):
            if done and not self.budget.left:
                break
            pair = {}
            for side in (self.theirs, self.ours)[:: 1 if index % 2 else -1]:
                pair[side.name] = side.complete(request)
                self.tick(f"{side.name}, {what}")
            done.append(Asked(name, request, pair[self.theirs.name], pair[self.ours.name]))
        return done

    def company(self, side: Side, count: int, known: Sequence[Asked], what: str) -> list[Asked]:
        """Answers of ``side`` to the requests of ``known``, ``count`` at a time, beside the answers alone."""
        done: list[Asked] = []
        padded = [known[i % len(known)] for i in range(max(len(known), count))]
        for start in range(0, len(padded), count):
            if done and not self.budget.left:
                break
            part = padded[start : start + count]
            found = side.at_once([asked.request for asked in part])
            done += [Asked(a.name, a.request, a.base, reply) for a, reply in zip(part, found, strict=True)]
            self.tick(f"{side.name}, {what}")
        return done


def compared(name: str, session: Session, asked: Sequence[Asked], wanted: int, remark: str = "") -> Check:
    """The check of answers that should be the baseline's; a fork at a near-tie is a note.

    Nothing is compared where the endpoint refuses a request, which is a note, or both sides do.
    """
    judged = [a for a in asked if not a.found.refused or (a.found.broken and not a.base.refused)]
    refused, alone = len(asked) - len(judged), [a for a in asked if a not in judged and not a.base.refused]
    if not judged:
        reason = asked[0].found.refused if asked else "no time was left"
        return Check(name, "note", f"not tested: {reason[:200]}", data={"compared": 0})
    known: dict[tuple[str, str], Fork] = {}  # repeated requests fork alike
    forks: list[Fork] = []
    for a in judged:
        if a.base.said != a.found.said:
            key = (a.name, a.found.text)
            if key not in known:
                known[key] = find_fork(a.name, a.request, a.base, a.found, session.theirs)
            forks.append(known[key])
    same, kinds = len(judged) - len(forks), [fork.kind for fork in forks]
    ties, others, unknown = (kinds.count(kind) for kind in ("near-tie", "NOT A TIE", "cannot be judged"))
    summary = f"{same} of {len(judged)} outputs are the baseline's"
    if forks:
        summary = (
            f"{len(forks)} of {len(judged)} outputs differ from the baseline's: {ties} at a near-tie, {others} where "
            f"there is none, {unknown} cannot be judged"
        )
    summary += remark + session.shortened(len(asked), wanted) + (f"; {refused} were refused" if refused else "")
    summary += f", {len(alone)} by the endpoint alone" if alone else ""
    status: Status = "fail" if others or unknown else "note" if forks or alone else "pass"
    data = {
        "compared": len(judged),
        "same": same,
        "ties": ties,
        "others": others,
        "unknown": unknown,
        "refused": refused,
        "seen_with_90_percent": detectable_rate(len(judged)),
        "forks": [fork.as_data() for fork in known.values()],
    }
    lines = [fork.line() for fork in forks] + [f"refused: {a.name}: {a.found.refused[:200]}" for a in alone]
    return Check(name, status, summary, list(dict.fromkeys(lines)), data)
