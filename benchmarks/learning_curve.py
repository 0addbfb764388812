"""How much better a draft becomes with more answers: α by position over fresh tokens of answers, and ten times more.

    python -m benchmarks.learning_curve my-eagle-30k my-eagle-100k my-eagle-300k
    python -m benchmarks.learning_curve --answers answers --kind eagle --sizes 30k 100k 300k 1M --out curves

Folders are those of ``outrider train``, one a size. With ``--answers``, drafts of ``--kind`` are trained in one pass
through nested parts of a folder of answers, all held against the same documents; those that are done already stay.
With ``--questions`` α is measured in real decoding too, where it counts only drafts that were right so far.

The law is 1 - α = e + b N^-c (benchmarks/power_law.py), with 95% intervals. τ is that of a chain whose positions are
accepted independently; beside it stands the one that was measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.decoding import alphas, decode, load, tau
from benchmarks.power_law import Fit, chain_tau, fit
from outrider import SamplingParams, SpeculationParams
from outrider.config.sources import SOURCES
from outrider.drafters.heads.config import HeadConfig
from outrider.errors import ConfigError
from outrider.utils.json_files import read_json_object
from outrider_lab.data import workloads
from outrider_lab.figures.page import COLOURS, MARKERS, pyplot
from outrider_train.answers.options import parse_count
from outrider_train.commands.common import log, parse_size
from outrider_train.data.documents import Line, split
from outrider_train.draft_models import DraftOptions, draft_trainers
from outrider_train.options import HeadOptions
from outrider_train.recipes import head_trainer
from outrider_train.report.card import write_report
from outrider_train.setup import DataOptions, TrainingSetup
from outrider_train.trainer import TrainOptions

KINDS = {"eagle": "eagle3", "dflash": "dflash", "medusa": "medusa", "draft": "draft"}
MORE = 10  # times the tokens of the largest size
LEAST_DRAFTS = 100  # that reach a position whose α is told


@dataclass(frozen=True)
class Point:
    """A trained draft. ``rows``: that α was measured on, or drafts."""

    name: str
    tokens: int
    alpha: tuple[float, ...]
    tau: float
    rows: int
    repeated: int = 0  # tokens of answers that were seen once more


def read_point(folder: Path) -> Point:
    """What ``report.json`` says of a draft. Raises ``ConfigError`` where it does not say what was learned from."""
    found = read_json_object(folder / "report.json").get("metrics", {})
    if not isinstance(found, dict) or not found.get("fresh_answer_tokens"):
        raise ConfigError(f"{folder / 'report.json'} counts no answer tokens: train the draft again")
    return Point(
        folder.name,
        found["fresh_answer_tokens"],
        tuple(found["alpha_by_position"]),
        found["mean_acceptance_length"],
        max(1, found["held_out_rows"]),
        found.get("repeated_answer_tokens", 0),
    )


def train(args: argparse.Namespace) -> list[Path]:
    """A draft for each size, from the first answers that have so many tokens; the folders."""
    whole = TrainingSetup(args.model, DataOptions((args.answers,), max_length=args.max_length), 0, device=args.device)
    documents = whole.documents
    training, held_out = split(documents, whole.data.held_out, 0)
    lines = [Line(documents[i], ()) for i in held_out[: args.held_out]]
    folders: list[Path] = []
    taken = 0
    for size in sorted(parse_count("sizes", text) for text in args.sizes):
        while taken < size and training:
            document = documents[training.pop(0)]
            taken += len(document.ids) - document.start
            lines.append(Line(document, ()))
        if taken < size:
            raise ConfigError(f"sizes={size}: {args.answers} has {taken} tokens to train on: write more answers")
        folders.append(args.out / f"{args.kind}-{size}")
        if not (folders[-1] / "report.json").exists():
            _train_one(args, tuple(lines), folders[-1])
    return folders


def _train_one(args: argparse.Namespace, lines: tuple[Line, ...], folder: Path) -> None:
    """The features of the documents of a smaller size are found again: its documents are the first of the next one."""
    cache = args.out / "features"
    data = DataOptions((args.answers,), max_length=args.max_length, cache=cache, cache_bytes=args.feature_cache)
    setup = TrainingSetup(args.model, data, 0, lines, device=args.device, log=log)
    options = TrainOptions(epochs=1, batch_tokens=args.batch_tokens, lr=args.lr, patience=10)  # to the end of the pass
    more: dict[str, Any] = {"log": log, "resume": True}
    if args.kind == "draft":
        trainer = next(draft_trainers(setup, DraftOptions(truncate=args.truncate), options, folder, **more))
    else:
        trainer, _ = head_trainer(setup, HeadOptions(kind=KINDS[args.kind]), options, folder, **more)
    trainer.run()
    write_report(trainer, name=f"{args.kind}, learning curve", about={"data": str(args.answers), "seed": 0})


def measure(args: argparse.Namespace, folder: Path, point: Point) -> Point:
    """The same draft in real decoding, greedy: chains as long as it has positions."""
    config = read_json_object(folder / "config.json")
    source = "model"
    if "kind" in config:
        kind = HeadConfig.from_json(config).kind
        source = next(name for name, record in SOURCES.items() if kind in record.head_kinds)
    heads, drafts = ([], [str(folder)]) if source == "model" else ([str(folder)], [])
    llm = load(args.model, source, heads, drafts, args.device, "auto")
    questions = workloads.load(args.questions, count=args.count, max_chars=args.max_chars)
    params = SamplingParams(max_tokens=args.max_tokens)
    speculation = SpeculationParams(draft=source, spec_length=len(point.alpha))
    room = llm.engine.max_seq_len - args.max_tokens
    prompts = [ids for ids in workloads.token_ids(llm.tokenizer, questions) if len(ids) < room]
    answers = [decode(llm, ids, params, speculation, str(i))[0] for i, ids in enumerate(prompts)]
    llm.close()
    drafts_made = sum(a.proposals for a in answers)
    rounds = [pair for answer in answers for pair in answer.rounds]
    reached = [sum(depth > i and accepted >= i for depth, accepted in rounds) for i in range(len(point.alpha))]
    known = [a for a, count in zip(alphas(answers), reached, strict=False) if count >= LEAST_DRAFTS]
    return Point(point.name, point.tokens, tuple(known), tau(answers), max(1, drafts_made), point.repeated)


def forecast(points: Sequence[Point]) -> tuple[Fit, dict[str, Any]]:
    """The fitted law, and what it says of the sizes there are and of ``MORE`` times the largest."""
    positions = min(len(p.alpha) for p in points)
    fitted = fit([p.tokens for p in points], [p.alpha[:positions] for p in points], [p.rows for p in points])
    target = MORE * max(p.tokens for p in points)
    alpha, law = fitted.alpha(target), fitted.law
    found = {
        "law": "1 - alpha = e + b * N**-c",
        "c": _spans(fitted.exponent()),
        "e": [round(float(x), 4) for x in law.floor],
        "b": [round(float(x), 4) for x in law.scale],
        "points": [
            {**vars(p), "tau_of_alpha": round(chain_tau(p.alpha), 3), "tau_of_law": round(fitted.tau(p.tokens)[0], 3)}
            for p in points
        ],
        "forecast": {
            "tokens": target,
            "alpha": [_spans([float(x) for x in values]) for values in zip(*alpha, strict=True)],
            "tau": _spans(fitted.tau(target)),
        },
    }
    return fitted, found


def _spans(values: Sequence[float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in zip(("value", "low", "high"), values, strict=True)}


def lines_of(title: str, found: Mapping[str, Any]) -> list[str]:
    """The result for people."""
    c, ahead = found["c"], found["forecast"]
    out = [f"{title}: 1 - α = e + b N^-c, c = {c['value']:.2f} ({c['low']:.2f} to {c['high']:.2f})", ""]
    out += [f"{'fresh tokens':>13} {'repeated':>10}  {'τ':>5} {'of α':>5} {'of law':>6}   α by position"]
    for p in found["points"]:
        alpha = " ".join(f"{a:.3f}" for a in p["alpha"])
        out.append(
            f"{p['tokens']:13,} {p['repeated']:10,}  {p['tau']:5.2f} {p['tau_of_alpha']:5.2f} {p['tau_of_law']:6.2f}   "
            f"{alpha}"
        )
    alpha = " ".join(f"{a['value']:.3f} ({a['low']:.3f} to {a['high']:.3f})" for a in ahead["alpha"])
    span = ahead["tau"]
    out.append(f"{ahead['tokens']:13,} forecast    τ {span['value']:.2f} ({span['low']:.2f} to {span['high']:.2f})")
    return [*out, f"{'':13} α {alpha}"]


def plot(path: Path, curves: Mapping[str, tuple[Fit, Sequence[Point]]]) -> None:
    """Points, curves and their intervals, a pane for each way of measuring."""
    import numpy as np

    figure, panes = pyplot().subplots(1, len(curves), figsize=(5.6 * len(curves), 4), sharey=True, squeeze=False)
    for axes, (title, (fitted, points)) in zip(panes[0], curves.items(), strict=True):
        ends = min(p.tokens for p in points) / 1.5, 1.2 * MORE * max(p.tokens for p in points)
        at = np.geomspace(*ends, 60)
        values, low, high = (np.stack(v) for v in zip(*(fitted.alpha(float(n)) for n in at), strict=True))
        for i in range(values.shape[1]):
            colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            axes.plot(at, values[:, i], color=colour, label=f"position {i + 1}")
            axes.fill_between(at, low[:, i], high[:, i], color=colour, alpha=0.14, linewidth=0)
            axes.plot([p.tokens for p in points], [p.alpha[i] for p in points], marker, color=colour)
        axes.set(xscale="log", xlabel="fresh tokens of answers", ylim=(0, 1), title=title)
    panes[0][0].set_ylabel("acceptance α")
    panes[0][0].legend(loc="upper left", ncols=3, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot().close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(arguments)
    folders = [*args.folders, *(train(args) if args.answers is not None else [])]
    points = sorted((read_point(folder) for folder in folders), key=lambda p: p.tokens)
    by_way = {"held-out documents": points}
    if args.questions is not None:
        named = {folder.name: folder for folder in folders}
        by_way["decoding"] = [measure(args, named[p.name], p) for p in points]
    try:
        found = {way: forecast(own) for way, own in by_way.items()}
    except ValueError as error:
        raise ConfigError(str(error)) from None
    result = {way: told for way, (_, told) in found.items()}
    if args.write is not None:
        args.write.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.plot is not None:
        plot(args.plot, {way: (fitted, by_way[way]) for way, (fitted, _) in found.items()})
    shown = [line for way, told in result.items() for line in [*lines_of(way, told), ""]]
    print(json.dumps(result) if args.json else "\n".join(shown))
    return result


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="of trained drafts of one kind")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--answers", type=Path, help="a folder of `outrider train answers` to train on")
    parser.add_argument("--kind", choices=list(KINDS), default="eagle")
    parser.add_argument("--sizes", nargs="+", default=["30k", "100k", "300k"], help="tokens of answers, nested")
    parser.add_argument("--out", type=Path, default=Path("bench-results/curves"), help="folder of what is trained")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--max-length", type=int, default=1024)
    parser.add_argument("--held-out", type=int, default=400, help="documents that are held out, at most")
    parser.add_argument("--feature-cache", type=parse_size, default="8GB", help="room for features on disk")
    parser.add_argument("--truncate", type=int, default=4, help="layers of a draft model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--questions", help="question.jsonl: measure α in real decoding too")
    parser.add_argument("--count", type=int, help="questions, round robin over categories")
    parser.add_argument("--max-chars", type=int, help="leave longer questions out")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--plot", type=Path, help="write a picture here")
    parser.add_argument("--write", type=Path, help="also write the JSON here")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
