"""schemathesis on every operation of the OpenAPI document, for as long as it is told.

    python -m tests.server.stress.fuzz_schema --seconds 600

Rounds of all its checks, each with another seed: no 5xx, answers that fit the document, nothing accepted that the
document forbids, methods, headers. One check is left out, that all the document allows is accepted: some rules have no
JSON Schema (an empty prompt, fields that exclude each other). Around it, the demands of ``attack``. ``--json`` prints
one JSON line; exit code 1 if anything is amiss.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.server.stress.attack import arguments, end, model_of, under_attack

CHECKS = ("--checks", "all", "--exclude-checks", "positive_data_acceptance", "--continue-on-failure")
OPTIONS = ("--threads", "1", "--max-tokens", "8")
EXAMPLES = 100  # of each operation in a round


def round_of(url: str, seconds: float, seed: int, folder: str) -> dict[str, Any]:
    """schemathesis' own report of one run."""
    report = Path(folder) / "report.json"
    report.unlink(missing_ok=True)
    where = ("--report", "json", "--report-json-path", str(report), "--output-sanitize", "false")
    budget = ("--max-time", str(max(1, round(seconds))), "--max-examples", str(EXAMPLES), "--seed", str(seed))
    program = "from schemathesis.cli import schemathesis; schemathesis()"
    command = [sys.executable, "-c", program, "run", f"{url}/openapi.json", *CHECKS, *budget, *where, "--no-color"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if not report.exists():
        raise SystemExit(f"schemathesis failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(report.read_text())
    return found | {"output": done.stdout}


def run(model: str, seconds: float, seed: int) -> dict[str, Any]:
    until, rounds, cases, amiss = time.monotonic() + seconds, 0, 0, list[str]()
    kinds: Counter[str] = Counter()
    with under_attack(model, *OPTIONS, amiss=amiss) as attacked, tempfile.TemporaryDirectory() as folder:
        while rounds == 0 or until - time.monotonic() > 5:
            found = round_of(attacked.server.url, until - time.monotonic(), seed + rounds, folder)
            rounds += 1
            cases += found["test_cases"]["generated"]
            for failure in found["failures"]:
                kinds[failure["title"]] += failure["count"]
            if found["failures"] or found["errors"]:
                amiss.append(f"seed {seed + rounds - 1}: {found['output'][-6000:]}")
            attacked.check(f"round {rounds}")
    return {
        "seconds": round(seconds),
        "seed": seed,
        "rounds": rounds,
        "cases": cases,
        "failures": dict(kinds),
        **attacked.report,
        "amiss": amiss,
    }


def main() -> None:
    args = arguments(__doc__)
    with model_of(args) as model:
        end(run(model, args.seconds, args.seed), args)


if __name__ == "__main__":
    main()
