"""A model run by 1, 2 and 4 processes: the digest of its logits, the time and the bytes of a forward pass.

python -m benchmarks.tensor_parallel --model smollm2-135m-instruct --sizes 1 2 4 --rows 1 8

The digests must be equal. ``received`` is what the gathers of a pass bring the first process, ``sent`` what it sends to
each of the others beforehand. Behind them: what a draft token costs if the draft model (here: the model itself) runs in
the first process, and if it is split as the target is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.models.base import LoadedModel
from outrider.models.batch import ForwardBatch, Span
from outrider.models.native_llama import NativeLlamaModel
from outrider.verify.tree import ancestor_mask
from outrider.weights.hub.catalog import resolve
from outrider.weights.loader import load_model
from outrider_fleet.parallel.load import ParallelGroup

CONTEXT = 160
TREE = (-1, -1, 0, 0, 2, 1)


def ids(vocab_size: int, count: int) -> list[int]:
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(0)).tolist()


def digest(model: LoadedModel) -> str:
    """Of the logits of a prompt, of a tree of which a path is kept, and of what comes after it."""
    tokens, kv = ids(model.config.vocab_size, CONTEXT + 16), model.new_cache(CacheSpec(max_seq_len=CONTEXT + 64))
    slot, found = kv.allocate(), hashlib.sha256()
    for count, mask in ((CONTEXT, None), (len(TREE), ancestor_mask(TREE)), (3, None)):
        start = kv.length(slot)
        kv.extend(slot, count)
        deep = range(count) if mask is None else [int(row.sum()) - 1 for row in mask]
        batch = ForwardBatch(tokens[:count], [start + d for d in deep], (Span(slot, start, count, mask),), None)
        found.update(model.forward(batch, kv).logits.numpy().tobytes())
        if mask is not None:
            kv.keep_path(slot, start, (0, 2, 4))
    return found.hexdigest()[:16]


def passes(model: LoadedModel, rows: int, repeat: int) -> list[float]:
    """Milliseconds of passes of so many rows behind a context."""
    tokens, kv = ids(model.config.vocab_size, CONTEXT + rows), model.new_cache(CacheSpec(max_seq_len=CONTEXT + rows))
    slot, took = kv.allocate(), []
    kv.extend(slot, CONTEXT)
    model.forward(ForwardBatch(tokens[:CONTEXT], range(CONTEXT), (Span(slot, 0, CONTEXT),), ()), kv)
    kv.extend(slot, rows)
    batch = ForwardBatch(tokens[CONTEXT:], range(CONTEXT, CONTEXT + rows), (Span(slot, CONTEXT, rows),), None)
    for _ in range(repeat):
        begin = time.perf_counter()
        model.forward(batch, kv)
        took.append(1e3 * (time.perf_counter() - begin))
    return took


def traffic(model: LoadedModel, group: ParallelGroup | None, rows: int) -> dict[str, int]:
    """Gathers and bytes of one pass: the difference of one pass and of two, as the context is read in each."""
    if group is None or not isinstance(model, NativeLlamaModel):
        return {"gathers": 0, "received": 0, "sent": 0}

    def counted(repeat: int) -> tuple[int, int, int]:
        before = (*model.gathered, group.leader.sent_bytes)
        passes(model, rows, repeat)
        after = (*model.gathered, group.leader.sent_bytes)
        return (after[0] - before[0], after[1] - before[1], after[2] - before[2])

    one, three = counted(1), counted(3)
    gathers, received, sent = ((b - a) // 2 for a, b in zip(one, three, strict=True))
    return {"gathers": gathers, "received": received, "sent": sent}


def measure(size: int, args: argparse.Namespace) -> dict[str, Any]:
    folder, options = resolve(args.model, progress=True), ModelOptions(dtype=args.dtype, max_seq_len=1024)
    group = None if size == 1 else ParallelGroup(size, threads=args.threads)
    model = load_model(folder, options) if group is None else group.load(folder, options, name=args.model)
    found: dict[str, Any] = {"size": size, "digest": digest(model), "rows": {}}
    for rows in args.rows:
        times = passes(model, rows, args.repeat)
        cell = {"ms": round(statistics.median(times), 2), "least_ms": round(min(times), 2)}
        found["rows"][rows] = cell | traffic(model, group, rows)
        line = "  ".join(f"{name} {value:,}" for name, value in found["rows"][rows].items())
        print(f"{size} processes  {found['digest']}  {rows:2} rows  {line}", flush=True)
    if group is not None:
        one, more = traffic(model, group, 1), traffic(model, group, 9)
        found["draft_in_first"] = (more["sent"] - one["sent"]) // 8
        found["draft_in_all"] = one["received"] + one["sent"]
        print(
            f"a draft token costs {found['draft_in_first']:,} bytes to each other process if one process drafts, and "
            f"{found['draft_in_all']:,} if all do"
        )
        group.close()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--threads", type=int, help="of each process; by default the processors are shared out")
    args = parser.parse_args(arguments)
    found = [measure(size, args) for size in args.sizes]
    print(json.dumps(found))
    equal = len({each["digest"] for each in found}) == 1
    if not equal:
        print("the digests differ", file=sys.stderr)
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
