"""The suite of tool calls on tiny servers: every notation and every source of drafts that a Llama can have.

    python -m tests.analysis.certify.tool_traffic [--calls 1000] [--at-once 32] [--notation hermes ...] [--source ...]

Calls are shared among the notations, and every source answers all of them, whole and streamed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from outrider.config import ModelOptions
from outrider.drafters.heads.fingerprint import target_fingerprint
from outrider.weights.loader import load_model
from outrider_lab.certify.report import Check
from outrider_lab.certify.tool_calls.suite import ToolSuite, check_tool_calls
from tests.analysis.certify.tool_models import TOLD, calling, calling_folder
from tests.test_llm_heads import save

TEXT = ("suffix", "lookup", "ngram", "prediction", "grammar", "recycling", "lookahead", "layer_skip", "suffix+grammar")
GROUPS = {
    "suffix": TEXT,
    "hierarchical": ("model", "hierarchical"),
    "models": ("models",),
    "eagle": ("eagle", "dflash", "medusa", "blockwise", "pass"),
}
"""Sources that one server can have, by the source that it is started with."""
SOURCES = tuple(source for group in GROUPS.values() for source in group)


def check_notation(folder: Path, notation: str, suite: ToolSuite) -> list[Check]:
    """The checks of one notation, on servers of its own with draft models and random heads."""
    target = calling_folder(folder / "target", notation)
    drafts = [str(calling_folder(folder / f"draft-{i}", notation)) for i in range(2)]
    told = target_fingerprint(load_model(target, ModelOptions(dtype="float32")), "a tiny model")
    heads = [str(save(folder / kind, kind, told)) for kind in ("eagle3", "dflash", "medusa", "blockwise", "pass")]
    options = {
        "hierarchical": {"draft_model": drafts[:1]},
        "models": {"draft_model": drafts},
        "eagle": {"heads": heads},
    }
    checks: list[Check] = []
    for first, names in GROUPS.items():
        if wanted := [name for name in names if name in suite.sources]:
            with calling(target, draft=first, **options.get(first, {})) as live:
                checks.extend(check_tool_calls(live.url, None, replace(suite, sources=wanted)))
    return checks


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--notation", nargs="+", default=list(TOLD))
    parser.add_argument("--source", nargs="+", default=list(SOURCES))
    args = parser.parse_args(arguments)
    began, totals, bad = time.monotonic(), Counter[str](), list[str]()
    for place, notation in enumerate(args.notation):
        count = args.calls // len(args.notation) + (place < args.calls % len(args.notation))
        suite = ToolSuite(count, args.at_once, args.seed + place, args.source, notation, tokens=32)
        with tempfile.TemporaryDirectory() as folder:
            checks = check_notation(Path(folder), notation, suite)
        for check in checks:
            totals.update({key: value for key, value in check.data.items() if isinstance(value, int)})
            if check.status != "pass" or check.data.get("equal") != check.data.get("pairs"):
                bad += [f"{notation}: {check.name}: {check.summary}", *(line[:2000] for line in check.details[:1])]
        print(f"{notation}: {dict(totals)}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print("\n".join(bad))
    print(json.dumps({"passed": not bad, "seconds": round(time.monotonic() - began), **totals}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
