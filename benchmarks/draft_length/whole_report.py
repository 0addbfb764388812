"""Cells of replayed whole requests: their percentiles, the bound, and a picture of before and after.

python -m benchmarks.draft_length.whole_report record smollm2.npz --questions QUESTIONS --model smollm2-135m-instruct
python -m benchmarks.draft_length.whole_report play smollm2.npz --model smollm2-135m-instruct --out after.json
python -m benchmarks.draft_length.whole_report plot before.json after.json regret.png
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.draft_length import texts, whole
from benchmarks.draft_length.machines import WHOLE
from benchmarks.whole_requests import summary
from outrider.drafters.datastore import Datastore

COLUMNS = ("machine", "slots", "length", "kind", "whole", "decoding", "over")
Row = tuple[str, int, int, str, float, float, float]
LIARS = {"liar": 0, "turncoat": 200}
"""Sources that are always wrong and say that they are sure: from the first proposal, or after so many good ones."""


def played(
    recorded: Sequence[texts.Text], source: whole.MakeSource, vocab_size: int, args: argparse.Namespace
) -> Iterator[Row]:
    """Every machine, number at once and length begins as a new process; answers over 256 tokens at one slot alone."""
    for name in args.machines:
        for slots in args.slots:
            for length in args.lengths:
                if length > 256 and slots > 1:
                    continue
                process = whole.Process(WHOLE[name], source, vocab_size)
                requests = max(2, args.requests // (2 if length > 256 else 1))
                for wave in whole.waves(recorded, slots, requests):
                    for each in process.answer(wave, length):
                        yield name, slots, length, each.kind, each.whole, each.decoding, each.most_over


def play(args: argparse.Namespace) -> None:
    recorded = texts.load(args.recording)
    vocab_size = 1 + max(max(*text.prompt, *text.output) for text in recorded)
    source: Callable[[], Any] = whole.suffix(vocab_size, _answers(args.model))
    if args.source in LIARS:
        source = partial(_liar, source, LIARS[args.source])
    rows = list(played(recorded, source, vocab_size, args))
    print(*table(rows), sep="\n")
    if args.out:
        args.out.write_text(json.dumps({"columns": COLUMNS, "rows": rows}))


def _liar(source: whole.MakeSource, honest: int) -> whole.Liar:
    return whole.Liar(source(), honest)


def _answers(model: str | None) -> Datastore | None:
    """The answers for every model, for this model's tokenizer."""
    if model is None:
        return None
    from outrider.drafters.shared_answers import TEXTS, SharedAnswers
    from outrider.tokenizer.tokenizer import Tokenizer
    from outrider.weights.hub.catalog import resolve

    folder = resolve(model)
    answers = SharedAnswers(folder, Tokenizer.from_folder(folder).vocab_size, TEXTS)
    return answers.wait(120)


def table(rows: Sequence[Row]) -> list[str]:
    """A line for all, and for each machine, number at once, length and kind."""
    lines = [f"{'plain / default':24} {'whole requests':>20} {'decoding alone':>20} {'cells < 0.98':>14} {'over':>6}"]
    lines.append(f"{'':24} {'mean / p50 / p10':>20} {'mean / p50 / p10':>20} {'':>14} steps")
    lines.append(_line("all", rows))
    for column in range(4):
        groups: defaultdict[Any, list[Row]] = defaultdict(list)
        for row in rows:
            groups[row[column]].append(row)
        lines += [_line(f"{COLUMNS[column]} {value}", own) for value, own in groups.items()]
    return lines


def _line(label: str, rows: Sequence[Row]) -> str:
    cells: defaultdict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        cells[row[:4]].append(row[4])
    low = sum(summary(cell)["p10"] < 0.98 for cell in cells.values())
    ratios = [row[4] for row in rows], [row[5] for row in rows]
    shown = [" / ".join(f"{value:.2f}" for value in summary(each).values()) for each in ratios]
    return f"{label:24} {shown[0]:>20} {shown[1]:>20} {f'{low} of {len(cells)}':>14} {max(r[6] for r in rows):6.2f}"


def plot(args: argparse.Namespace) -> None:
    """Speed of whole requests by percentile, before and after, for each number at once."""
    from outrider_lab.bench.show import pyplot

    plt = pyplot()
    found: Mapping[str, Any] = {
        name: json.loads(path.read_text())["rows"] for name, path in (("before", args.before), ("after", args.after))
    }
    slots = sorted({row[1] for row in found["after"]})
    figure, axes = plt.subplots(1, len(slots), figsize=(8, 2.6), dpi=60, sharey=True)
    for axis, number in zip(axes, slots, strict=True):
        for name, colour in (("before", "#D55E00"), ("after", "#0072B2")):
            ratios = sorted(row[4] for row in found[name] if row[1] == number)
            axis.plot([100 * (i + 0.5) / len(ratios) for i in range(len(ratios))], ratios, color=colour, label=name)
        axis.axhline(1, color="#6b6b6b", linewidth=0.8)
        axis.axhline(0.98, color="#6b6b6b", linewidth=0.8, linestyle=":")
        axis.set_xlim(0, 50)
        axis.set_ylim(0.6, 1.3)
        axis.set_title(f"{number} at once", loc="left", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("times plain, whole request")
    figure.supxlabel("percentile of requests", fontsize=10, y=-0.04)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(args.picture, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("record", help="answer every kind's prompts without drafts")
    command.add_argument("recording", type=Path)
    command.add_argument("--model", default="smollm2-135m-instruct")
    command.add_argument("--questions", type=Path, help="Spec-Bench's question.jsonl")
    command.add_argument("--texts", type=Path, nargs="+", default=[], help="files whose passages are continued")
    command.add_argument("--requests", type=int, default=16, help="of each kind")
    command.add_argument("--lengths", type=int, nargs="+", default=[256])
    command.add_argument("--at-once", type=int, default=8)
    command.add_argument("--prompt-tokens", type=int, default=128)
    command.set_defaults(run=texts.record, slots=[1], kinds=None)
    command = commands.add_parser("play", help="replay a recording on machines")
    command.add_argument("recording", type=Path)
    command.add_argument("--model", help="whose tokenizer the answers for every model are read with")
    command.add_argument("--source", default="suffix", choices=["suffix", *LIARS])
    command.add_argument("--machines", nargs="+", default=list(WHOLE), choices=list(WHOLE))
    command.add_argument("--slots", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    command.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 256, 1024])
    command.add_argument("--requests", type=int, default=8, help="of a cell; half of them above 256 tokens")
    command.add_argument("--out", type=Path)
    command.set_defaults(run=play)
    command = commands.add_parser("plot", help="a picture of two replays")
    for name in ("before", "after", "picture"):
        command.add_argument(name, type=Path)
    command.set_defaults(run=plot)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
