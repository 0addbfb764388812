"""Schemas, regexes, grammars and chat templates that are almost right: does the server stay sound?

    python -m tests.server.stress.fuzz_grammar --seconds 600
    python -m tests.server.stress.fuzz_grammar --templates --seconds 600

Sound ones are changed by their own structure and sent to a server. There must be no 5xx but a 503 with
``Retry-After``, no traceback in the log, no wait of over a second for ``/health``, no answer that is longer in coming
than ``PATIENCE``, and no token that differs without drafts, or in an ordinary request between. ``--json`` prints one
JSON line; exit code 1 if anything is amiss. Each case can be made again from ``--seed`` and its number.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.server.stress.attack import end, model_of, parser_for, under_attack
from tests.server.stress.grammar_mutations import KINDS
from tests.server.stress.process import SERVE
from tests.server.stress.template_mutations import conversation, template
from tests.server.stress.templated import FIELD

AT_ONCE, ROUND = 4, 200  # requests; after each round comes an ordinary one
PATIENCE = 60.0  # seconds: a grammar may be tried for ten, behind those of the others
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
OPTIONS = ("--threads", "1", "--max-tokens", "64", "--draft", "suffix+recycling")
TEMPLATED = "tests.server.stress.templated"


@dataclass
class Found:
    cases: Counter[str] = field(default_factory=Counter)  # by kind
    statuses: Counter[str] = field(default_factory=Counter)  # by kind and status
    compared: int = 0  # answers that were asked for again without drafts
    slowest: float = 0.0  # seconds
    amiss: list[str] = field(default_factory=list)


def case(seed: int, number: int, templates: bool) -> tuple[str, str, dict[str, Any]]:
    """Kind, path and body."""
    rng = random.Random(f"{seed} {number}")
    common = {"max_tokens": rng.choice((1, 8, 24)), "seed": number, "temperature": rng.choice((0, 1))}
    if templates:
        body = conversation(rng) | common
        body["chat_template_kwargs"] = body.get("chat_template_kwargs", {}) | {FIELD: template(rng)}
        return "template", CHAT, body
    kind = rng.choice(list(KINDS))
    return kind, COMPLETIONS, {"prompt": "hello"} | KINDS[kind](rng) | common


def attack(client: httpx.Client, kind: str, path: str, body: dict[str, Any], name: str, found: Found) -> None:
    """One case; an answer must come again without drafts."""
    began = time.monotonic()
    answer = client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    found.slowest = max(found.slowest, time.monotonic() - began)
    found.cases[kind] += 1
    found.statuses[f"{kind} {answer.status_code}"] += 1
    if answer.status_code >= 500 and not (answer.status_code == 503 and "retry-after" in answer.headers):
        found.amiss.append(f"{name}: {answer.status_code} {answer.text[:300]} for {json.dumps(body)[:1000]}")
    if answer.status_code != 200:
        return
    again = client.post(
        path, content=json.dumps(body | {"speculation": "off"}), headers={"Content-Type": "application/json"}
    )
    found.compared += 1
    if again.status_code == 200 and _said(again) != _said(answer):
        found.amiss.append(
            f"{name}: {_said(answer)} with drafts, {_said(again)} without, for {json.dumps(body)[:1000]}"
        )


def _said(answer: httpx.Response) -> list[Any]:
    """What an answer says: its choices, but not when."""
    choices: list[Any] = answer.json()["choices"]
    return [[choice.get("text"), choice.get("message"), choice["finish_reason"]] for choice in choices]


def round_of(url: str, numbers: Iterator[int], seed: int, templates: bool, found: Found) -> None:
    """``ROUND`` cases, ``AT_ONCE`` of them at any time."""
    local = threading.local()

    def one(number: int) -> None:
        if not hasattr(local, "client"):
            local.client = httpx.Client(base_url=url, timeout=PATIENCE)
        name = f"case {number}"
        try:
            attack(local.client, *case(seed, number, templates), name, found)
        except httpx.TimeoutException:
            found.amiss.append(f"{name}: no answer in {PATIENCE} s")
        except httpx.TransportError as error:
            found.amiss.append(f"{name}: {error!r}")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, itertools.islice(numbers, ROUND)))


def run(model: str, seconds: float, seed: int, templates: bool) -> dict[str, Any]:
    found, numbers = Found(), itertools.count()
    module = TEMPLATED if templates else SERVE
    with under_attack(model, *OPTIONS, amiss=found.amiss, module=module) as attacked:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            round_of(attacked.server.url, numbers, seed, templates, found)
            attacked.check(f"{found.cases.total()} cases")
    return {
        "seconds": round(seconds),
        "seed": seed,
        "cases": dict(found.cases),
        "answers": dict(sorted(found.statuses.items())),
        "compared": found.compared,
        "slowest_answer_s": round(found.slowest, 1),
        **attacked.report,
        "amiss": found.amiss,
    }


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--templates", action="store_true", help="chat templates, in place of schemas and grammars")
    args = parser.parse_args()
    with model_of(args) as model:
        end(run(model, args.seconds, args.seed, args.templates), args)


if __name__ == "__main__":
    main()
