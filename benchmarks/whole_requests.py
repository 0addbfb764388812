"""The default beside plain decoding, whole requests and decoding alone: kinds of text x requests at once x lengths.

    python -m benchmarks.whole_requests --questions QUESTIONS --model smollm2-135m-instruct --plot whole.png
    python -m benchmarks.whole_requests --texts FILE... --model hybrid.gguf --slots 1 4 --json

Both engines live in one process and answer the same prompts in turn, in an order that alternates; kinds of text take
turns. Each length and number of requests has a ``cache_salt`` of its own, so that no answer has been said before. A
ratio is plain time over default time of one request: its wait, its prompt and its answer (whole), or its answer behind
the first token (decoding). Answers end where the model ends them. Kinds: chat, code edit, JSON in a schema, retrieval
(RAG), translation, creative writing at temperature 1; with ``--texts`` passages that are continued.
"""

from __future__ import annotations

import argparse
import datetime
import inspect
import json
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.mtp import passages
from benchmarks.structured import TASKS
from outrider import LLM, Output, SamplingParams, StructuredOutput
from outrider.native.processor import processor_name

CATEGORIES = {
    "chat": ("reasoning", "extraction", "stem", "humanities", "roleplay", "coding", "math"),
    "RAG": ("rag",),
    "translation": ("translation",),
    "creative": ("writing", "roleplay", "humanities"),
}
WARM = "Name a colour."


@dataclass(frozen=True)
class Task:
    """A prompt: a chat's message or token ids, with the options that its kind has."""

    prompt: str | list[int]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Cell:
    """One kind of text, one length, one number of requests at once: the ratios of its requests."""

    kind: str
    length: int
    slots: int
    whole: list[float] = field(default_factory=list)
    decoding: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    seconds: list[tuple[float, float]] = field(default_factory=list)  # plain, default
    tokens: list[int] = field(default_factory=list)
    same: int = 0

    def add(self, plain: Output, default: Output) -> None:
        ours, theirs = (out.stats.queue_s + out.stats.prefill_s for out in (default, plain))
        self.first.append(theirs / ours)
        self.seconds.append((theirs + plain.stats.decode_s, ours + default.stats.decode_s))
        self.whole.append(self.seconds[-1][0] / self.seconds[-1][1])
        if default.stats.decode_s > 0:
            self.decoding.append(plain.stats.decode_s / default.stats.decode_s)
        self.tokens.append(len(default.token_ids))
        self.same += plain.token_ids == default.token_ids

    def row(self) -> dict[str, Any]:
        shown = {name: summary(getattr(self, name)) for name in ("whole", "decoding", "first")}
        return {
            **{"kind": self.kind, "length": self.length, "slots": self.slots, "requests": len(self.whole)},
            **{"tokens": sum(self.tokens), "same": self.same, "seconds": self.seconds, "ratios": self.whole},
            **{"decoding_ratios": self.decoding, "first_ratios": self.first, **shown},
        }


def summary(ratios: Sequence[float]) -> dict[str, float]:
    """Mean, median and 10th percentile; nothing of no ratios."""
    if not ratios:
        return {}
    tenth = sorted(ratios)[max(0, -(-len(ratios) // 10) - 1)]
    return {"mean": statistics.fmean(ratios), "p50": statistics.median(ratios), "p10": tenth}


def edits() -> Iterator[str]:
    """Requests to rewrite a function of the standard library with one name changed."""
    for source in (textwrap, statistics, argparse, json.encoder, json.decoder, datetime, inspect):
        for name, function in inspect.getmembers(source, inspect.isfunction):
            code = inspect.getsource(function)
            if 300 < len(code) < 1500:
                yield f"Rename the function `{name}` to `new_{name}` and repeat all of its code:\n```python\n{code}```"


def questions(path: Path, categories: Sequence[str]) -> Iterator[str]:
    """First turns of the questions of some categories, a category in turn."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    of = [[row["turns"][0] for row in rows if row["category"] == category] for category in categories]
    for i in range(max(map(len, of))):
        yield from (turns[i] for turns in of if i < len(turns))


def questions_of(path: Path, most: int) -> dict[str, list[Task]]:
    """Chats by kind, at most so many of each: Spec-Bench's questions, edits of code, JSON in a schema."""
    found: dict[str, list[Task]] = {}
    for kind, categories in CATEGORIES.items():
        options = {"temperature": 1.0, "seed": 5} if kind == "creative" else {}
        found[kind] = [Task(text, options) for text in islice(questions(path, categories), most)]
    found["code edit"] = [Task(text) for text in islice(edits(), most)]
    found["JSON"] = [
        Task(text, {"structured": StructuredOutput(json_schema=schema)}) for text, schema in islice(TASKS.items(), most)
    ]
    return found


def tasks(args: argparse.Namespace, llm: LLM) -> dict[str, list[Task]]:
    """The prompts by kind, as many as the largest cell needs."""
    most = max(count(args, length, slots) for length in args.lengths for slots in args.slots)
    found: dict[str, list[Task]] = {}
    if args.texts:
        found["continued"] = [Task(ids) for ids in passages(llm, args.texts, most, args.prompt_tokens)]
    if args.questions:
        found |= questions_of(args.questions, most)
    return {kind: found[kind] for kind in args.kinds or found}


def count(args: argparse.Namespace, length: int, slots: int) -> int:
    """Requests of a cell: whole waves, fewer where answers are long."""
    wanted: int = max(2, args.requests // (2 if length > 256 else 1))
    return -(-wanted // slots) * slots


def answer(llm: LLM, wave: Sequence[Task], length: int, salt: str) -> list[Output]:
    params = [SamplingParams(max_tokens=length, **task.options) for task in wave]
    prompts = [task.prompt for task in wave]
    if isinstance(prompts[0], list):
        return llm.generate(prompts, params, cache_salt=salt)
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return llm.chat(chats, params, cache_salt=salt)


def measure(plain: LLM, default: LLM, of: Mapping[str, Sequence[Task]], length: int, slots: int) -> list[Cell]:
    """Answer every kind's prompts by both engines, a wave of each kind in turn."""
    cells = {kind: Cell(kind, length, slots) for kind in of}
    for begin in range(0, max(map(len, of.values())), slots):
        order = [plain, default] if begin // slots % 2 else [default, plain]
        for kind, prompts in of.items():
            if wave := prompts[begin : begin + slots]:
                answers = {id(llm): answer(llm, wave, length, f"{length}, {slots}") for llm in order}
                for pair in zip(answers[id(plain)], answers[id(default)], strict=True):
                    cells[kind].add(*pair)
    return list(cells.values())


def merged(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    return {
        name: summary([ratio for cell in cells for ratio in getattr(cell, name)])
        for name in ("whole", "decoding", "first")
    }


def line(label: str, found: dict[str, dict[str, float]], requests: int, same: int) -> str:
    cells = [" / ".join(f"{found[name].get(key, float('nan')):.2f}" for key in ("mean", "p50", "p10"))
             for name in ("whole", "decoding", "first")]  # fmt: skip
    return f"{label:28} {cells[0]:>20} {cells[1]:>20} {cells[2]:>20} {same:>6} of {requests}"


def table(cells: Sequence[Cell]) -> list[str]:
    """Ratios by number at once, kind and length, and each kind alone."""
    heading = f"{'plain / default':28} {'whole requests':>20} {'decoding alone':>20} {'first token':>20} {'same':>6}"
    lines = [heading, f"{'':28} " + " ".join(f"{'mean / p50 / p10':>20}" for _ in range(3))]
    for name in ("slots", "kind", "length"):
        for value in dict.fromkeys(getattr(cell, name) for cell in cells):
            chosen = [cell for cell in cells if getattr(cell, name) == value]
            label = {"slots": f"{value} at once", "length": f"{value} tokens"}.get(name, str(value))
            requests, same = sum(len(cell.whole) for cell in chosen), sum(cell.same for cell in chosen)
            lines.append(line(label, merged(chosen), requests, same))
        lines.append("")
    requests, same = sum(len(cell.whole) for cell in cells), sum(cell.same for cell in cells)
    return [*lines, line("all", merged(cells), requests, same)]


def plot(path: Path, cells: Sequence[Cell], title: str) -> None:
    """Every request's ratio as a point, by number at once; a line at 1."""
    from outrider_lab.bench.show import pyplot

    plt = pyplot()
    kinds = list(dict.fromkeys(cell.kind for cell in cells))
    slots = sorted({cell.slots for cell in cells})
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=150)
    for number, kind in enumerate(kinds):
        offset = (number - (len(kinds) - 1) / 2) * 0.12
        points = [(slots.index(cell.slots) + offset, ratio) for cell in cells if cell.kind == kind
                  for ratio in cell.whole]  # fmt: skip
        axes.scatter(*zip(*points, strict=True), s=9, alpha=0.55, linewidths=0, label=kind, color=colours[number])
    axes.axhline(1, color="#6b6b6b", linewidth=1)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xticks(range(len(slots)), [f"{value} at once" for value in slots])
    axes.set_ylabel("times plain, whole request")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=3)
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--questions", type=Path, help="Spec-Bench's question.jsonl")
    parser.add_argument("--texts", type=Path, nargs="+", default=[], help="files whose passages are continued")
    parser.add_argument("--kinds", nargs="+", help="some of the kinds (default: all that there are)")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--requests", type=int, default=8, help="of a cell; half of them above 256 tokens")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="of a passage")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--control", action="store_true", help="plain decoding in place of the default: what is noise")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true", help="with every request's seconds")
    args = parser.parse_args()
    if not args.questions and not args.texts:
        parser.error("give --questions FILE, --texts FILE..., or both")
    return args


def main() -> None:
    args = arguments()
    shape: dict[str, Any] = {"max_batch_size": max(args.slots)} | ({"threads": args.threads} if args.threads else {})
    cells: list[Cell] = []
    drafts: dict[str, Any] = {"draft": "none"} if args.control else {}
    with LLM(args.model, draft="none", **shape) as plain, LLM(args.model, **drafts, **shape) as default:
        of = tasks(args, plain)
        for llm in (plain, default):
            answer(llm, [Task(WARM) if args.questions else next(iter(of.values()))[0]], 16, "before")
        for slots in args.slots:
            for length in args.lengths:
                few = {kind: prompts[: count(args, length, slots)] for kind, prompts in of.items()}
                cells += measure(plain, default, few, length, slots)
    result = {
        **{"model": args.model, "processor": processor_name(), "date": datetime.date.today().isoformat()},
        **{"cells": [cell.row() for cell in cells], "all": merged(cells)},
    }
    print(json.dumps(result) if args.json else "\n".join([*table(cells), f"{result['processor']}, {result['date']}"]))
    if args.plot:
        plot(args.plot, cells, f"The default beside plain decoding, {args.model}")


if __name__ == "__main__":
    main()
