"""What a forward pass of the target costs, by the number of rows it scores: T(n), the curve that speculation lives on.

    python -m benchmarks.rows model.gguf --peer llama.cpp:PYTHON --peer ik:build/bin/llama-bench
    python -m benchmarks.rows smollm2-135m-instruct --context 512 --rows 1 2 4 8 16 32

``PYTHON`` has llama-cpp-python; any name but ``llama.cpp`` is a llama-bench program, with options of its own if need
be. Engines take turns with the same file and number of threads; medians are printed. Two limits stand below them: the
weights of the file that a pass needs, read once at the memory's rate, and their products with all rows at the rate of
int8 multiply-adds. Both rates are measured before and after, and the higher counts.

Then what drafts could gain at most with such a curve: the best length and the speed over plain decoding of drafts that
cost nothing and are right with probability α at every position (``outrider_lab.cost``), for one request and for
several at once; and the α from which a single free draft token pays.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows_engines import Engine, Outrider, Passes, Times, open_peer
from outrider.config import ModelOptions
from outrider.errors import OutriderError
from outrider.models.base import LoadedModel
from outrider.models.config import ModelConfig
from outrider.models.layer_kinds import num_layer_weights
from outrider.native.context import NativeContext
from outrider.native.library import available_isas, default_isa, native_library
from outrider.native.measure import MachineRates, measure_rates
from outrider.native.processor import num_threads, processor_name, set_num_threads
from outrider.weights.folder import gguf_weights
from outrider.weights.gguf.shards import read_gguf
from outrider.weights.hub.catalog import resolve
from outrider.weights.loader import load_model
from outrider_lab.cost import DraftCost, LatencyCurve, best_measured_k, break_even_alpha

ALPHAS = (0.4, 0.6, 0.8, 0.95)
FREE = DraftCost()


def ceiling(curve: LatencyCurve, batch: int, overhead: float) -> dict[str, Any]:
    """What free drafts gain at most: by α the best length and the gain, and the α at which one token breaks even."""
    most = max(curve.points) // batch - 1  # beyond the rows that were measured nothing is known
    gains = {a: best_measured_k([a] * most, curve, FREE, batch=batch, overhead=overhead) for a in ALPHAS}
    return {"gains": gains, "break_even": break_even_alpha(1, curve, FREE, batch=batch, overhead=overhead)}


def in_turn(engines: Sequence[Engine], rounds: int) -> list[Times]:
    """Times of every engine over all rounds; in each round another one begins."""
    found: list[Times] = [{} for _ in engines]
    for number in range(rounds):
        for shift in range(len(engines)):
            at = (number + shift) % len(engines)
            for rows, seconds in engines[at].turn().items():
                found[at].setdefault(rows, []).extend(seconds)
    return found


def share_of_experts(config: ModelConfig, rows: int) -> float:
    """The share of the experts that ``rows`` rows use, if each draws its own at random; 1 without experts."""
    experts = config.experts
    return 1.0 if experts is None else 1 - (1 - experts.used / experts.count) ** rows


def bytes_read(file: Path, config: ModelConfig, rows: int) -> int:
    """Bytes of a file's tensors that a pass over ``rows`` rows reads."""
    tensors, total = read_gguf(file).tensors, 0.0
    for name, tensor in tensors.items():
        looked_up = name == "per_layer_token_embd.weight" or (
            name == "token_embd.weight" and "output.weight" in tensors
        )
        share = share_of_experts(config, rows) if "_exps." in name else 1.0
        total += 0 if looked_up else (tensor.stop - tensor.start) * share
    return round(total)


def limits(file: Path | None, model: LoadedModel, rates: MachineRates, rows: Sequence[int]) -> dict[str, Any]:
    """Seconds that memory and arithmetic alone take, by rows as in ``Times``; ``file``: a GGUF file, or None."""
    config, memory, arithmetic = model.config, {}, {}
    layers, head = num_layer_weights(config, used=True), config.vocab_size * config.hidden_size
    for n in rows:
        read = model.weight_bytes if file is None else bytes_read(file, config, abs(n))
        products = layers * n + head * n if n > 0 else -layers * n + head
        memory[n] = rates.memory_limit(read)
        arithmetic[n] = rates.arithmetic_limit(products, 1)
    return {"memory": memory, "arithmetic": arithmetic}


def measure(args: argparse.Namespace, ref: str) -> dict[str, Any]:
    """Everything about one model, as ``--json`` prints it."""
    folder = resolve(ref, progress=True)
    file = gguf_weights(folder)
    if args.peer and file is None:
        raise SystemExit(f"{ref} is no GGUF file: peers read the same file, so give one")
    passes = Passes(args.rows, args.prompt, args.context, args.repeat)
    rates = [measure_rates(NativeContext(num_threads()))]
    ours = Outrider(lambda: load_model(folder, ModelOptions(dtype=args.dtype)), passes)
    model, engines = ours.model, list[Engine]([ours])
    try:
        engines += [open_peer(peer, file, num_threads(), passes) for peer in args.peer if file is not None]
        found = in_turn(engines, args.rounds)
        peaks = [engine.peak_mb() for engine in engines]
        rates.append(measure_rates(NativeContext(num_threads())))
    finally:
        for engine in engines:
            engine.close()
    curve = LatencyCurve({n: statistics.median(found[0][n]) for n in args.rows})
    reached = MachineRates(max(r.read_gb_s for r in rates), max(r.int8_gmac_s for r in rates))
    return {
        "model": Path(ref).name,
        "weight_bytes": model.weight_bytes,
        "file_bytes": None if file is None else bytes_read(file, model.config, 1),
        **machine(),
        "read_gb_s": reached.read_gb_s,
        "int8_gmac_s": reached.int8_gmac_s,
        "context": passes.context,
        "load_s": {engine.name: engine.load_s for engine in engines},
        "peak_mb": {engine.name: peak for engine, peak in zip(engines, peaks, strict=True)},
        "seconds": {engine.name: summary(times) for engine, times in zip(engines, found, strict=True)},
        "limits": limits(file, model, reached, list(found[0])),
        "ceiling": {n: ceiling(curve, n, args.overhead_ms / 1e3) for n in args.batch if 2 * n <= max(args.rows)},
    }


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": processor_name(),
        "instruction_set": default_isa(),
        "instruction_sets": available_isas(native_library()),
        "threads": num_threads(),
    }


def summary(times: Times) -> dict[int, dict[str, float]]:
    """Median and quartiles of seconds, by rows as in ``Times``."""
    found = {}
    for rows, seconds in times.items():
        low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
        found[rows] = {"q1": low, "median": middle, "q3": high, "passes": len(seconds)}
    return found


def table(result: Mapping[str, Any]) -> list[str]:
    """Milliseconds by rows, and a prompt's tokens per second; limits below."""
    rows = list(next(iter(result["seconds"].values())))
    title = "".join(f"{n:>10}" if n > 0 else f"{f'prompt of {-n}':>16}" for n in rows)
    medians = {name: {n: t["median"] for n, t in times.items()} for name, times in result["seconds"].items()}
    medians |= {f"limit of {name}": seconds for name, seconds in result["limits"].items()}
    lines = [
        f"{result['model']}: {result['weight_bytes'] / 1e6:.0f} MB in memory"
        + (f", {result['file_bytes'] / 1e6:.0f} MB of the file read for a row" if result["file_bytes"] else ""),
        f"{result['processor']} ({result['instruction_set']}), {result['threads']} threads, "
        f"{result['read_gb_s']} GB/s, {result['int8_gmac_s']} G int8 multiply-adds/s, {result['date']}",
        f"{'ms, by rows':26}{title}",
    ]
    for name, seconds in medians.items():
        lines.append(f"{name:26}" + "".join(_cell(n, seconds.get(n)) for n in rows))
    known = [(name, load, result["peak_mb"][name]) for name, load in result["load_s"].items() if load is not None]
    return [*lines, *(f"{name}: loaded in {load:.1f} s" + _resident(peak) for name, load, peak in known)]


def _resident(peak: float | None) -> str:
    return "" if peak is None else f", at most {peak:.0f} MB resident"


def _cell(rows: int, seconds: float | None) -> str:
    if rows > 0:
        return f"{'-' if seconds is None else f'{1e3 * seconds:.1f}':>10}"
    return f"{'-' if seconds is None else f'{-rows / seconds:.1f} tok/s':>16}"


def gains(result: Mapping[str, Any]) -> list[str]:
    """What free drafts gain, a line for each number of requests."""
    lines = []
    for batch, most in result["ceiling"].items():
        cells = "  ".join(f"α {a}: {gain:.2f} (K={k})" for a, (k, gain) in most["gains"].items())
        pays = "never" if most["break_even"] is None else f"from α {most['break_even']:.2f} on"
        lines.append(f"{batch:2} at once: free drafts gain at most {cells}; one token pays {pays}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["smollm2-135m-instruct"], help="GGUF files, folders or names")
    parser.add_argument("--peer", action="append", default=[], help="llama.cpp:PYTHON or ik:LLAMA-BENCH; repeatable")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--context", type=int, default=64, help="tokens before the rows")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt to read too; 0: none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=5, help="passes of each number of rows in a round")
    parser.add_argument("--batch", type=int, nargs="+", default=[1], help="requests that draft at once")
    parser.add_argument("--overhead-ms", type=float, default=0.3, help="of a step beside the forward pass")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true", help="print one JSON object a model")
    args = parser.parse_args()
    if args.threads:
        set_num_threads(args.threads)
    for ref in args.models:
        try:
            result = measure(args, ref)
        except OutriderError as error:
            raise SystemExit(f"error: {error}") from None
        print(json.dumps(result) if args.json else "\n".join([*table(result), *gains(result), ""]), flush=True)


if __name__ == "__main__":
    main()
