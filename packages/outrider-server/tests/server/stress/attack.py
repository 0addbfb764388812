"""What holds for every attack on a server, and how its program is started and reports."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.server.stress.process import SERVE, Process, toy_model

STALL = 1.0  # seconds in which /health must answer


@dataclass
class Attacked:
    """A server under attack. What is wrong with it is added to ``amiss``."""

    server: Process
    expected: str
    amiss: list[str]
    ordinary: int = 0
    report: dict[str, Any] = field(default_factory=dict)

    def check(self, after: str) -> None:
        """An ordinary request must have the tokens that it had before the attack."""
        self.ordinary += 1
        if self.server.ordinary() != self.expected:
            self.amiss.append(f"another answer after {after}")


@contextmanager
def under_attack(model: str, *options: str, amiss: list[str], module: str = SERVE) -> Iterator[Attacked]:
    """A server to attack. Afterwards its waits, its log, what it still holds, and its exit code are looked at."""
    with Process(model, *options, module=module) as server:
        server.wait_ready()
        attacked = Attacked(server, server.ordinary(), amiss)
        descriptors = server.descriptors()
        with server.watched() as waits:
            yield attacked
        attacked.check("all")
        held = left(server, descriptors)
        code, log = server.stop(), server.log()
    wrong = {
        f"/health took {waits[0]:.1f} s": waits[0] > STALL,
        f"left at the end: {held}": bool(held),
        f"exit code {code}": code != 0,
        f"the log has {log[log.find('Traceback') :][:3000]}": "Traceback" in log,
    }
    amiss += [words for words, true in wrong.items() if true]
    health = {"longest_health_s": round(waits[0], 3), "log_bytes": len(log)}
    attacked.report = {"ordinary_requests": attacked.ordinary, **health}


def left(server: Process, descriptors: Counter[str], seconds: float = 20) -> dict[str, float]:
    """What is still there that was not before, once connections have had time to close."""
    end = time.monotonic() + seconds
    while True:
        metrics = server.settled()
        opened = server.descriptors() - descriptors
        opened["socket"] -= 1  # of the question for the metrics
        del opened["pipe"]  # to processes for grammars and templates, which are started when they are needed
        found = {
            **{f"open: {name}": max(0, count) for name, count in opened.items()},
            "sequences": metrics["num_requests_running"] + metrics["num_requests_waiting"],
            "cache": round(metrics["kv_cache_usage_perc"], 9),
        }
        if not any(found.values()) or time.monotonic() > end:
            return {name: count for name, count in found.items() if count}
        time.sleep(0.2)


def arguments(about: str | None) -> argparse.Namespace:
    """Those of every attack with a budget of seconds."""
    parser = parser_for(about)
    parser.add_argument("--seconds", type=float, default=60)
    return parser.parse_args()


def parser_for(about: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model to serve in place of the toy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON line and nothing else")
    return parser


@contextmanager
def model_of(args: argparse.Namespace) -> Iterator[str]:
    with toy_model() as toy:
        yield args.model or toy


def end(result: dict[str, Any], args: argparse.Namespace) -> None:
    """Print the result and exit, with code 1 if anything is amiss."""
    if not args.json:
        for key, value in result.items():
            print(f"{key:20} {value}")
    print(json.dumps(result))
    sys.exit(bool(result["amiss"]))
