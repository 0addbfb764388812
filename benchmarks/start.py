"""A start: processor time of the import, seconds to the first token, and memory.

    python -m benchmarks.start [--model NAME] [--runs N] [--json]

Each number is the median of runs in processes of their own, after one that warms the system's page cache, compiles the
Python files and times the model's passes. Report the machine and that it was idle with them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from outrider.drafters.shared_answers import VARIABLE

IMPORT = "from outrider import LLM"
SETTLED = """
import sys
from outrider import LLM, SamplingParams
with LLM(sys.argv[1]) as llm:
    llm.generate("hi", SamplingParams(max_tokens=1))
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print(status["VmRSS"].split()[0])
"""
LIMITS = {"import_cpu_s": 0.4, "first_token_s": 1.0, "peak_mb": 250.0, "settled_mb": 250.0}


def environment() -> dict[str, str]:
    """This process's, but Python may keep what it compiled, and the datastore comes when it does for a user."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", VARIABLE)}


def run(command: Sequence[str]) -> tuple[float, float, float, str]:
    """Seconds to the first byte of the output, processor seconds, peak MB, and the output."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment())
    assert child.stdout is not None
    first = child.stdout.read(1)
    seconds = time.perf_counter() - began
    output = first + child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)[:80]} ended with {child.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output.decode()


def measure(model: str) -> dict[str, float]:
    """One run of each."""
    python = sys.executable
    _, processor, _, _ = run([python, "-c", IMPORT])
    generate = [python, "-m", "outrider", "generate", "-m", model, "hi", "-n", "1"]
    seconds, whole, peak, text = run(generate)
    if not text.strip():
        raise SystemExit(f"{model} said nothing")
    settled = float(run([python, "-c", SETTLED, model])[3]) / 1024
    return {
        "import_cpu_s": processor,
        "first_token_s": seconds,
        "command_cpu_s": whole,
        "peak_mb": peak,
        "settled_mb": settled,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    measure(args.model)
    found = [measure(args.model) for _ in range(args.runs)]
    medians = {name: round(statistics.median(each[name] for each in found), 3) for name in found[0]}
    if args.json:
        print(json.dumps({"model": args.model, "load": os.getloadavg()[0], **medians}))
        return
    print(f"{args.model}, medians of {args.runs}, load {os.getloadavg()[0]:.1f}")
    for name, value in medians.items():
        limit = f"   (at most {LIMITS[name]:g})" if name in LIMITS else ""
        print(f"  {name:15} {value:8.3f}{limit}")


if __name__ == "__main__":
    main()
