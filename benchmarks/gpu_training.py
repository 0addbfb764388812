"""The stages of ``benchmarks.gpu`` that write answers and train on them."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_session import Session, run_all
from outrider.errors import ConfigError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.hub.catalog import resolve
from outrider_lab.data import workloads
from outrider_train.draft_models import DraftOptions, draft_trainers
from outrider_train.options import HeadOptions
from outrider_train.recipes import head_trainer
from outrider_train.report.card import write_report
from outrider_train.setup import DataOptions, TrainingSetup
from outrider_train.trainer import Trainer, TrainOptions

TOKENS = 20_000_000  # of answers, at scale 1
SEQUENCES = 256  # at once in each process: a step of one is half a step of Python, so several share the device
KV_TOKENS = 640  # of the cache for each sequence, on average
MOST_PROCESSES = 14
HEADS = {
    "eagle": HeadOptions("eagle3"),
    "dflash": HeadOptions("dflash", heads=6, layers=1),
    "medusa": HeadOptions("medusa"),
    "draft": None,
}
MOST_BYTES = 16_000_000  # of a head's file
_PROBE = (3, 13)  # steps between which a head's speed is measured
KEPT = ("config.json", "model.safetensors", "README.md", "report.json", "training.png", "tokenizer.json",
        "tokenizer_config.json")  # fmt: skip


def answers(session: Session) -> bool:
    """Fill folders, one a process, until there are enough tokens or time is up."""
    a, wanted = session.args, max(600, round(TOKENS * session.scale))
    on_gpu = a.device == "cuda"
    count = max(1, min(MOST_PROCESSES, (os.cpu_count() or 1) - 2)) if on_gpu else 1
    folders = [session.work / "answers" / str(i) for i in range(count)]
    command = [sys.executable, "-m", "outrider", "train", "answers", "--model", a.model, "--device", a.device]
    command += ["--tokens", str(-(-wanted // count)), "--threads", "1", "--json"]
    if on_gpu:
        command += ["--dtype", "bfloat16", "--max-batch-size", str(SEQUENCES)]
        command += ["--kv-tokens", str(SEQUENCES * KV_TOKENS), "--max-batched-tokens", "2048"]
    if session.small:
        command += ["--max-tokens", "24", "--prompt-tokens", "16"]
    if Path(a.questions).exists():
        command += ["--exclude", a.questions]
    if Tokenizer.from_folder(resolve(a.model)).chat_template is None:
        command += ["--prompts", str(_openings(session.work / "openings.jsonl"))]
    else:
        command += ["--turns", "1-2"]
    began, before = time.monotonic(), _written(folders)

    def tell() -> None:
        tokens = _written(folders)
        session.tell(f"answers: {tokens:,} tokens, {(tokens - before) / (time.monotonic() - began):,.0f} a second")

    commands = [[*command, "--out", str(folder), "--seed", str(i)] for i, folder in enumerate(folders)]
    statuses = run_all(commands, session, tell)
    tell()
    reports = [json.loads(path.read_text()) for f in folders if (path := f / "report.json").exists()]
    seconds = max([1e-9, *(r["seconds"] for r in reports)])
    found = {"processes": count, "tokens": _written(folders), "exit_statuses": statuses, "reports": reports}
    session.write("answers.json", found | {"generated_per_s": sum(r["generated_tokens"] for r in reports) / seconds})
    return bool(reports) and all(r["complete"] for r in reports)


def _written(folders: list[Path]) -> int:
    """Tokens of answers, of the reports that running processes write."""
    paths = [path for folder in folders if (path := folder / "report.json").exists()]
    return sum(int(json.loads(path.read_text())["tokens_out"]) for path in paths)


def _openings(path: Path) -> Path:
    """Prompts for a model that knows no chats: beginnings of stories."""
    texts = [story.text.split() for story in workloads.STORIES]
    lines = [{"prompt": " ".join(words[:n])} for words in texts for n in range(2, len(words) + 1)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def gather(folders: list[Path], path: Path) -> int:
    """The token ids of all answers in one file, one of each folder in turn; how many there are."""

    def ids(folder: Path) -> Iterator[str]:
        for shard in sorted(folder.glob("answers-*.jsonl")):
            for line in shard.read_bytes().split(b"\n")[:-1]:  # what has no end yet is left out
                found = json.loads(line)
                yield json.dumps({key: found[key] for key in ("prompt_ids", "answer_ids")}) + "\n"

    count, fresh = 0, path.with_suffix(".tmp")
    with fresh.open("w", encoding="utf-8") as file:
        for group in zip_longest(*map(ids, folders)):
            lines = [line for line in group if line is not None]
            count += len(lines)
            file.writelines(lines)
    if not count:
        raise ConfigError(f"{folders[0].parent} has no answers yet: run the stage answers first")
    os.replace(fresh, path)
    return count


def heads(session: Session) -> bool:
    """Train every head, each for its share of the time; one that is stopped goes on in the next session."""
    if not session.answers.exists():  # once: a head that goes on wants the data that it began with
        folders = sorted((session.work / "answers").glob("[0-9]*"))
        count = gather(folders, session.answers) if folders else 0
        session.tell(f"heads: {count:,} answers")
    data = DataOptions((session.answers,), max_length=1024, held_out=0.2 if session.small else 0.005)
    setup = TrainingSetup(session.args.model, data, 0, device=session.args.device, log=session.tell)
    kinds = [kind for kind in HEADS if not _is_finished(session.work / "heads" / kind)]
    for i, kind in enumerate(kinds):
        until = time.monotonic() + session.left / (len(kinds) - i)
        if session.left > 0:
            _train(session, setup, kind, until)
    return all(_is_finished(session.work / "heads" / kind) for kind in HEADS)


def _train(session: Session, setup: TrainingSetup, kind: str, until: float) -> None:
    folder = session.work / "heads" / kind
    plan = folder / "plan.json"
    tokens = 1024 if session.small or session.args.device == "cpu" else 8192
    options = TrainOptions(epochs=1.0, batch_tokens=tokens, lr=1e-3, patience=1000)
    if plan.exists():
        options = replace(options, **json.loads(plan.read_text()))
    elif not session.small:
        options = replace(options, epochs=_epochs(session, setup, kind, options, until))
    folder.mkdir(parents=True, exist_ok=True)
    plan.write_text(json.dumps({"epochs": options.epochs}))

    def on_step(step: int) -> None:
        trainer.stop = time.monotonic() > until

    trainer = _trainer(setup, kind, options, folder, log=_sparse(session), resume=True, on_step=on_step)
    trainer.run()
    about = {
        "target": setup.fingerprint.facts(), "data": "answers of the target", "command": "make gpu STAGE=heads",
        "options": {key: value for key, value in asdict(options).items() if key != "patience"},
    }  # fmt: skip
    found = write_report(trainer, name=f"{kind}, trained on a GPU" if torch.cuda.is_available() else kind, about=about)
    session.tell(f"{kind}: α {' '.join(f'{x:.3f}' for x in found.alpha)}, τ {found.tau:.2f}")
    out = session.out / "heads" / kind
    out.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        if (folder / name).exists():
            shutil.copyfile(folder / name, out / name)
    if (size := (out / "model.safetensors").stat().st_size) > MOST_BYTES:
        session.tell(f"{kind}: {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}")


def _trainer(setup: TrainingSetup, kind: str, options: TrainOptions, folder: Path, **more: Any) -> Trainer:
    head = HEADS[kind]
    if head is not None:
        return head_trainer(setup, head, options, folder, **more)[0]
    small = DraftOptions(hidden_size=128, layers=2, heads=4)  # mostly embeddings of a large vocabulary
    return next(draft_trainers(setup, small, options, folder, **more))


def _epochs(session: Session, setup: TrainingSetup, kind: str, options: TrainOptions, until: float) -> float:
    """The part of the data that fits into the time, by a few steps of a trainer that is thrown away."""
    folder, times = session.work / "heads" / f"{kind}-probe", dict[int, float]()
    shutil.rmtree(folder, ignore_errors=True)

    def on_step(step: int) -> None:
        times[step] = time.monotonic()
        probe.stop = step >= _PROBE[1]

    probe = _trainer(setup, kind, options, folder, on_step=on_step)
    steps = probe.steps
    probe.run()
    began = time.monotonic()
    probe.measure()
    evaluations = (options.evaluations + 2) * (time.monotonic() - began)
    shutil.rmtree(folder, ignore_errors=True)
    first, last = min(_PROBE[0], max(times)), max(times)
    each = (times[last] - times[first]) / max(1, last - first)
    room = max(1.0, (until - time.monotonic() - evaluations) * 0.9)
    epochs = min(1.0, max(2, room / max(1e-9, each)) / steps)
    session.tell(f"{kind}: {1e3 * each:.0f} ms a step, {epochs:.1%} of {steps} steps")
    return round(epochs, 4)


def _sparse(session: Session) -> Any:
    def log(line: str) -> None:
        if not line.startswith("step ") or line.split("/")[0].endswith("00"):
            session.tell(line)

    return log


def _is_finished(folder: Path) -> bool:
    state = folder / "state" / "state.json"
    return state.exists() and bool(json.loads(state.read_text())["progress"]["finished"])
