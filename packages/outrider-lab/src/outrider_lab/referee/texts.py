"""Parts that compare texts: greedy alone and in company, seeded, prefixes, biases and penalties, streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outrider_lab.certify.report import Check
from outrider_lab.certify.statistics import detectable_rate
from outrider_lab.referee.forks import find_fork
from outrider_lab.referee.session import Asked, Session, compared

__all__ = ["biased", "greedy", "prefixes", "seeded", "streams"]

SEED = 1234
PREFIX = (
    "The keeper of the lighthouse wrote one line into the log each evening: the wind, the sea, and the ships that "
    "passed. On the first day the wind was north and the sea was high, and three ships passed. "
) * 3


def greedy(session: Session, loads: Mapping[str, int], control: int) -> Iterator[Check]:
    """Greedy outputs alone, then in company; the baseline in company of ``control`` is the control."""
    wanted = len(session.requests)
    pieces = session.budget.split(2 + len(loads))
    session.budget, whole = pieces, session.budget
    pieces.begin(1)
    try:
        session.both(session.requests, "greedy", into=session.alone)
    finally:  # an interruption keeps the answers before it
        found = compared("greedy output, alone", session, session.alone, wanted)
        nothing = bool(session.alone) and not found.data["compared"]  # then nothing else is proved either
        yield replace(found, status="fail") if nothing else found
    pieces.begin(1)
    again = session.company(session.theirs, control, session.alone, "again, in company")
    yield _control(again)
    for name, count in loads.items():
        pieces.begin(1)
        together = session.company(session.ours, count, session.alone, f"greedy, {name}")
        yield compared(f"greedy output, {name}", session, together, max(count, len(session.alone)))
    session.budget = whole


def _control(again: Sequence[Asked]) -> Check:
    name = "control: baseline against itself"
    differ = sum(a.base.said != a.found.said for a in again)
    if not differ:
        return Check(name, "pass", f"{len(again)} of {len(again)} greedy outputs repeat under concurrency")
    return Check(
        name,
        "note",
        f"{differ} of {len(again)} greedy outputs of the baseline change when requests run together: its arithmetic "
        "depends on the batch, so speculation need not give identical outputs either",
        data={"differ": differ},
    )


def seeded(session: Session) -> Iterator[Check]:
    """Outputs with a seed, where the baseline repeats itself with it."""
    name = "same seed output"
    requests = [(key, {**body, "temperature": 0.8, "seed": SEED}) for key, body in session.requests]
    probe = [session.theirs.complete(requests[0][1]) for _ in range(2)]
    if probe[0].said != probe[1].said or probe[0].refused:
        reason = probe[0].refused or "the baseline does not repeat itself with a seed"
        yield Check(name, "note", f"not tested: {reason[:200]}", data={"compared": 0})
        return
    own = [session.ours.complete(requests[0][1]) for _ in range(2)]
    asked = session.both(requests, "seeded")
    same, steady = sum(a.base.said == a.found.said for a in asked), own[0].said == own[1].said
    summary = f"{same} of {len(asked)} outputs with the same seed are the baseline's"
    if same < len(asked):
        summary += " (an engine that promises the distribution only need not give the same tokens)"
    if not steady:
        summary += "; the endpoint does not repeat itself with a seed, and the baseline does"
    summary += session.shortened(len(asked), len(requests))
    data = {
        "compared": len(asked),
        "same": same,
        "repeats": steady,
        "seen_with_90_percent": detectable_rate(len(asked)),
    }
    yield Check(name, "pass" if same == len(asked) and steady else "note", summary, data=data)


def prefixes(session: Session) -> Iterator[Check]:
    """A long prompt whose beginning the server has read before, asked twice, beside the baseline's first answer."""
    requests = [(f"{key}, behind a shared prefix", {**body, "prompt": PREFIX + str(body["prompt"]), "max_tokens": 24})
                for key, body in session.requests[:6]]  # fmt: skip
    first = session.both(requests, "prefixes")
    again = [replace(a, found=session.ours.complete(a.request)) for a in first]
    yield compared("prefix hits", session, first + again, 2 * len(requests))


def biased(session: Session) -> Iterator[Check]:
    """Penalties, and a ban of the token that an output has most often, where the server tells ids."""
    requests: list[tuple[str, dict[str, Any]]] = []
    for key, body in session.requests[:6]:
        short = {**body, "max_tokens": min(48, int(body["max_tokens"]))}
        requests.append((f"{key}, penalties", {**short, "presence_penalty": 1.0, "frequency_penalty": 0.5}))
        ids = session.theirs.complete({**short, "return_token_ids": True, "logprobs": 1}).ids
        if ids:
            token = Counter(ids).most_common(1)[0][0]
            requests.append((f"{key}, without token {token}", {**short, "logit_bias": {str(token): -100}}))
    bans = sum("logit_bias" in body for _, body in requests)
    remark = "" if bans else "; biases were not tested, as the server tells no ids of tokens"
    yield compared("penalties and biases", session, session.both(requests, "penalties"), len(requests), remark)


def streams(session: Session) -> Iterator[Check]:
    """Streamed greedy outputs of the endpoint beside its own whole ones."""
    asked: list[Asked] = []
    for known in session.alone:
        if asked and not session.budget.left:
            break
        asked.append(Asked(known.name, known.request, known.found, session.ours.stream(known.request)))
        session.tick("endpoint, streams")
    name, answered = "streams against whole", [a for a in asked if not (a.found.refused or a.base.refused)]
    if not answered:
        yield Check(name, "note", f"not tested: {asked[0].found.refused[:200] if asked else 'nothing was asked'}")
        return
    judges = session.ours, session.theirs
    forks = [find_fork(a.name, a.request, a.base, a.found, *judges) for a in answered if a.base.text != a.found.text]
    ties = sum(fork.kind == "near-tie" for fork in forks)
    firsts = [a.found.first_s for a in answered]
    summary = f"{len(answered) - len(forks)} of {len(answered)} streams are the whole output"
    summary += f"; {ties} part at a near-tie" if ties else ""
    yield Check(
        name,
        "fail" if len(forks) > ties else "note" if forks else "pass",
        summary + session.shortened(len(asked), len(session.alone)),
        [fork.line() for fork in forks],
        {"compared": len(answered), "same": len(answered) - len(forks), "ties": ties, "first_text_s": firsts},
    )
