"""What a forward pass of the target costs, by the number of rows it scores: T(n), the curve that speculation lives on.

    python -m benchmarks.rows --model smollm2-135m-instruct --context 64 512 --rows 1 2 4 8 16 32

Then what drafts could gain at most with such a curve: the best length and the speed over plain decoding of drafts that
cost nothing and are right with probability α at every position (``outrider_lab.cost``), for one request and for
several at once; and the α from which a single free draft token pays.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from outrider.config import ModelOptions
from outrider.native.processor import set_num_threads
from outrider.weights.hub.catalog import resolve
from outrider.weights.loader import load_model
from outrider_lab.cost import DraftCost, LatencyCurve, best_measured_k, break_even_alpha
from outrider_lab.measure import measure_latency_curve

ALPHAS = (0.4, 0.6, 0.8, 0.95)
FREE = DraftCost()


def ceiling(curve: LatencyCurve, batch: int, overhead: float) -> dict[str, Any]:
    """What free drafts gain at most: by α the best length and the gain, and the α at which one token breaks even."""
    most = max(curve.points) // batch - 1  # beyond the rows that were measured nothing is known
    gains = {a: best_measured_k([a] * most, curve, FREE, batch=batch, overhead=overhead) for a in ALPHAS}
    return {"gains": gains, "break_even": break_even_alpha(1, curve, FREE, batch=batch, overhead=overhead)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", nargs="+", default=["auto"])
    parser.add_argument("--context", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16], help="requests that draft at once")
    parser.add_argument("--overhead-ms", type=float, default=0.3, help="of a step beside the forward pass")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        set_num_threads(args.threads)
    folder = resolve(args.model, progress=True)
    for dtype in args.dtype:
        model = load_model(folder, ModelOptions(dtype=dtype))
        for context in args.context:
            curve = measure_latency_curve(model, context=context, rows=args.rows, repeat=args.repeat)
            medians = {n: 1e3 * seconds for n, seconds in curve.points.items()}
            first = medians[args.rows[0]]
            cells = "  ".join(f"{n}: {ms:.1f} ms (x{ms / first:.2f})" for n, ms in medians.items())
            print(f"{dtype:9} context {context:5}   {cells}")
            found = {n: ceiling(curve, n, args.overhead_ms / 1e3) for n in args.batch if 2 * n <= max(args.rows)}
            for batch, most in found.items():
                gains = "  ".join(f"α {a}: {gain:.2f} (K={k})" for a, (k, gain) in most["gains"].items())
                pays = "never" if most["break_even"] is None else f"from α {most['break_even']:.2f} on"
                print(f"{'':9} {batch:2} at once: free drafts gain at most {gains}; one token pays {pays}")
            print(json.dumps({"dtype": dtype, "context": context, "ms": medians, "ceiling": found}))


if __name__ == "__main__":
    main()
