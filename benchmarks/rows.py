"""What one run of the target costs, by the number of rows it scores: T(n), the curve that speculation lives on.

python -m benchmarks.rows --model smollm2-135m-instruct --context 64 512 --rows 1 2 4 8 16 32
"""

from __future__ import annotations

import argparse
import json

import torch

from outrider.analysis.measure import measure_latency_curve
from outrider.checkpoints.catalog import resolve
from outrider.checkpoints.loader import load_model
from outrider.config import ModelOptions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"])
    parser.add_argument("--context", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    folder = resolve(args.model, progress=True)
    for dtype in args.dtype:
        model = load_model(folder, ModelOptions(dtype=dtype))
        for context in args.context:
            curve = measure_latency_curve(model, context=context, rows=args.rows, repeat=args.repeat)
            medians = {n: 1e3 * seconds for n, seconds in curve.points.items()}
            first = medians[args.rows[0]]
            cells = "  ".join(f"{n}: {ms:.1f} ms (x{ms / first:.2f})" for n, ms in medians.items())
            print(f"{dtype:9} context {context:5}   {cells}")
            print(json.dumps({"dtype": dtype, "context": context, "ms": medians}))


if __name__ == "__main__":
    main()
