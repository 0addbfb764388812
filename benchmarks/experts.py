"""What a pass costs by its rows and by the distinct experts that they read, and how many experts neighbours share.

    python -m benchmarks.experts MODEL ...                 # T(rows, union), and its fit
    python -m benchmarks.experts MODEL --text FILE ...     # also the experts that neighbours in these texts share

Rows of equal tokens choose nearly the same experts, and rows of different ones nearly independent experts; so passes
of the same number of rows read few or many. They take turns, medians are printed, and so is the least-squares fit

    T = a + b * rows + c * union

Texts are read by the model's own tokenizer, in pieces of 512 tokens. Of weights that are random, what is printed says
nothing of trained routers. ``benchmarks.experts_lab`` trains a small model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import machine
from outrider.cache import CacheSpec, extend_unread
from outrider.config import ModelOptions
from outrider.errors import OutriderError
from outrider.models.base import LoadedModel
from outrider.models.batch import SequenceInput, pack
from outrider.models.experts import ExpertReads, Experts
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.hub.catalog import resolve
from outrider.weights.loader import load_model

PIECE = 512


@dataclass(frozen=True)
class Case:
    """A pass of ``rows`` rows with so many ``different`` tokens."""

    rows: int
    different: int


@dataclass(frozen=True)
class Fit:
    """Milliseconds: of a pass, of a row more, of an expert more; and the errors of the fit, as shares of the times."""

    a: float
    b: float
    c: float
    mean_error: float
    worst_error: float

    def ms(self, rows: float, union: float) -> float:
        return self.a + self.b * rows + self.c * union


def cases(rows: Sequence[int]) -> list[Case]:
    """For each number of rows, as many different tokens as halving it gives."""
    return [Case(n, n >> i) for n in rows for i in range(n.bit_length()) if n == 1 << (n.bit_length() - 1) or i == 0]


def fit(points: Mapping[Case, tuple[float, float]]) -> Fit:
    """From the union and milliseconds of each case; relative errors are made small."""
    seconds = np.array([ms for _, ms in points.values()])
    columns = np.array([[1.0, case.rows, union] for case, (union, _) in points.items()])
    found, *_ = np.linalg.lstsq(columns / seconds[:, None], np.ones(len(seconds)), rcond=None)
    errors = np.abs(columns @ found / seconds - 1)
    a, b, c = map(float, found)
    return Fit(a, b, c, float(errors.mean()), float(errors.max()))


def independent(experts: Experts, layers: int, rows: int) -> float:
    """The mean number of distinct experts of rows that choose alike and independently."""
    return layers * experts.count * (1 - (1 - experts.used / experts.count) ** rows)


class Passes:
    """Passes of one sequence behind ``context`` tokens."""

    def __init__(self, model: LoadedModel, context: int, most: int) -> None:
        self._model, self._context = model, context
        self._cache = model.new_cache(CacheSpec(slots=1, max_seq_len=context + most))
        self._slot = self._cache.allocate()

    def run(self, tokens: Sequence[int]) -> tuple[ExpertReads, float]:
        """The experts and the seconds of a pass."""
        rows = len(tokens)
        extend_unread(self._cache, self._slot, self._context, rows)
        positions = range(self._context, self._context + rows)
        batch = pack([SequenceInput(self._slot, self._context, tokens, positions, range(rows))])
        began = time.perf_counter()
        reads = self._model.forward(batch, self._cache).experts
        seconds = time.perf_counter() - began
        if reads is None:
            raise OutriderError("a model with experts is needed, that the native library runs")
        return reads, seconds


def spread(model: LoadedModel, number: int) -> int:
    """Tokens from all over the vocabulary, as neighbours in it are alike."""
    return round(number * 0.618034 * model.config.vocab_size) % model.config.vocab_size


def measure(model: LoadedModel, rows: Sequence[int], context: int, rounds: int) -> dict[Case, tuple[float, float]]:
    """By case, the mean union and the median milliseconds."""
    passes, found = Passes(model, context, max(rows)), dict[Case, list[tuple[ExpertReads, float]]]()
    order = cases(rows)
    for number in range(rounds + 1):
        for case in order[number % len(order) :] + order[: number % len(order)]:
            taken = passes.run([spread(model, number + row % case.different) for row in range(case.rows)])
            if number:  # the first round reads weights from disk
                found.setdefault(case, []).append(taken)
    return {
        case: (
            statistics.mean(reads.count for reads, _ in own),
            1e3 * statistics.median(seconds for _, seconds in own),
        )
        for case, own in sorted(found.items(), key=lambda each: (each[0].rows, each[0].different))
    }


def read_texts(model: LoadedModel, tokenizer: Tokenizer, texts: Sequence[str]) -> dict[int, float]:
    """By rows, the mean number of distinct experts of so many neighbours in the texts."""
    sums: dict[int, float] = {}
    pieces = 0
    for text in texts:
        ids = tokenizer.encode(text)
        for start in range(0, len(ids) - PIECE + 1, PIECE):
            reads, _ = Passes(model, 0, PIECE).run(ids[start : start + PIECE])
            pieces += 1
            for size, mean in reads.by_rows.items():
                sums[size] = sums.get(size, 0.0) + mean
    if not pieces:
        raise SystemExit(f"error: no text has {PIECE} tokens")
    return {size: total / pieces for size, total in sums.items()}


def report(args: argparse.Namespace, ref: str) -> dict[str, Any]:
    """Everything about one model, as ``--json`` prints it."""
    folder = resolve(ref, progress=True)
    model = load_model(folder, ModelOptions())
    experts, points = model.config.experts, measure(model, args.rows, args.context, args.rounds)
    assert experts is not None
    layers, found = experts.of_a_row(model.config.num_layers) // experts.used, fit(points)
    texts = [path.read_text(encoding="utf-8") for path in args.text]
    shared = read_texts(model, Tokenizer.from_folder(folder), texts) if texts else {}
    drawn = {n: independent(experts, layers, n) for n in args.rows}
    return {
        "model": Path(ref).name,
        **machine(),
        "experts": [experts.count, experts.used, layers],
        "passes": [[case.rows, case.different, union, ms] for case, (union, ms) in points.items()],
        "fit": vars(found),
        "independent": drawn,
        "text": shared,
        "over_one_row": {
            name: {n: found.ms(n, union[n]) / found.ms(1, drawn[1]) for n in args.rows if n in union}
            for name, union in (("independent", drawn), ("text", shared))
        },
    }


def table(result: Mapping[str, Any]) -> list[str]:
    """A line for each case, and the fit."""
    count, used, layers = result["experts"]
    found, over = result["fit"], result["over_one_row"]
    lines = [
        f"{result['model']}: {used} of {count} experts in {layers} layers",
        "  rows  tokens   union       ms     fit",
    ]
    for rows, different, union, ms in result["passes"]:
        said = found["a"] + found["b"] * rows + found["c"] * union
        lines.append(f"{rows:6}{different:8}{union:8.0f}{ms:9.2f}{said:8.2f}")
    lines.append(
        f"T = {found['a']:.2f} + {found['b']:.3f} * rows + {found['c']:.4f} * union ms; "
        f"off by {100 * found['mean_error']:.1f}%, at most {100 * found['worst_error']:.1f}%"
    )
    for n, union in result["independent"].items():
        own = result["text"].get(n)
        said = "" if own is None else f"; in the texts {own:.0f}, {over['text'][n]:.2f} times one row"
        lines.append(f"{n:3} rows: independent {union:.0f} experts, {over['independent'][n]:.2f} times one row{said}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="GGUF files, folders or names")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--context", type=int, default=64, help="tokens before the rows")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--text", type=Path, nargs="+", default=[], help="files of text")
    parser.add_argument("--json", action="store_true", help="print one JSON object a model")
    args = parser.parse_args()
    for ref in args.models:
        try:
            result = report(args, ref)
        except OutriderError as error:
            raise SystemExit(f"error: {error}") from None
        print(json.dumps(result) if args.json else "\n".join([*table(result), ""]), flush=True)


if __name__ == "__main__":
    main()
