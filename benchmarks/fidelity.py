"""How far rounding moves next-token distributions: Outrider and llama.cpp beside a float64 forward pass.

    python -m benchmarks.fidelity model.Q8_0.gguf --texts prose.txt question.jsonl --python PEER_PYTHON
    python -m benchmarks.fidelity model.Q8_0.gguf --engines llama.cpp llama.cpp:q8_0 outrider outrider:auto:float32

Engines are ``llama.cpp[:CACHE]`` (type of its keys and values, f16 if left out) and ``outrider[:DTYPE[:CACHE]]``.
The reference computes with the numbers that a file holds, so it has the file's own quantisation error and nothing
else. What is measured is what an engine adds by rounding activations, keys and values. Every text is cut to so many
tokens, read in one piece and scored at every position.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import reference64
from outrider.cache import CacheSpec
from outrider.models.batch import ForwardBatch, Span
from outrider.models.factory import make_model
from outrider.native.processor import set_num_threads
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider_lab.data import workloads

_PEER = Path(__file__).with_name("llama_cpp_logits.py")
_COLUMNS = ("mean KL", "99th percentile", "same arg-max", "perplexity", "mean KL beyond the first's")


def llama_cpp(engine: str, job: dict[str, Any], python: str) -> tuple[str, list[Tensor], list[Tensor]]:
    """Version, tokens (int64 [n]) and logits (float32 [n, vocabulary]) of every text."""
    with tempfile.TemporaryDirectory() as folder:
        job = job | {"cache": engine.partition(":")[2] or "f16", "out": str(Path(folder, "logits.npz"))}
        path = Path(folder, "job.json")
        path.write_text(json.dumps(job))
        done = subprocess.run([python, str(_PEER), str(path)], check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{python} cannot run llama.cpp; name an interpreter with --python\n{done.stderr[-2000:]}")
        with np.load(job["out"]) as found:
            tokens, logits = ([torch.from_numpy(found[f"{name}.{i}"]) for i in range(len(job["texts"]))]
                              for name in ("tokens", "logits"))  # fmt: skip
    return done.stdout.strip(), tokens, logits


def outrider(engine: str, checkpoint: Checkpoint, texts: Sequence[Tensor]) -> list[Tensor]:
    """Logits (float32 [n, vocabulary]) of every text, each read in one forward pass."""
    dtype: Any
    kv_cache_dtype: Any
    dtype, kv_cache_dtype = (*engine.split(":")[1:], "auto", "auto")[:2]
    model = make_model(
        checkpoint.config, checkpoint.stored, quantised=checkpoint.quantised, dtype=dtype, kv_cache_dtype=kv_cache_dtype
    )
    found = []
    for tokens in texts:
        cache = model.new_cache(CacheSpec(max_seq_len=len(tokens)))
        slot, n = cache.allocate(), len(tokens)
        cache.extend(slot, n)
        batch = ForwardBatch(tokens.tolist(), range(n), (Span(slot, 0, n),), logit_rows=None)
        found.append(model.forward(batch, cache).logits)
    return found


class Measured:
    """One engine's logits of all texts, compared with the reference's."""

    def __init__(self, logits: Iterable[Tensor], reference: Iterable[Tensor], texts: Iterable[Tensor]) -> None:
        kl, same, surprise = [], [], []
        for own, exact, tokens in zip(logits, reference, texts, strict=True):
            q, p = own.double().log_softmax(-1), exact.log_softmax(-1)
            kl.append((p.exp() * (p - q)).sum(-1))
            same.append(q.argmax(-1) == p.argmax(-1))
            surprise.append(-q[:-1].gather(1, tokens[1:, None])[:, 0])
        self.kl, self.same, self.surprise = torch.cat(kl), torch.cat(same), torch.cat(surprise)

    def summary(self, first: Measured) -> dict[str, float]:
        """``excess``: mean KL beyond that of ``first``, and its standard error over positions."""
        excess = self.kl - first.kl
        return {
            "mean_kl": self.kl.mean().item(),
            "kl_p99": self.kl.quantile(0.99).item(),
            "same_argmax": self.same.double().mean().item(),
            "perplexity": self.surprise.mean().exp().item(),
            "excess": excess.mean().item(),
            "excess_error": excess.std().item() / len(excess) ** 0.5,
        }


def types_of(checkpoint: Checkpoint) -> dict[str, int]:
    """How many matrices of each type a file holds, the commonest first."""
    counts = Counter(tensor.type for tensor in checkpoint.stored.values() if len(tensor.shape) == 2)
    return dict(counts.most_common())


def compare(file: Path, args: argparse.Namespace, texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A summary for each engine, the reference's perplexity first."""
    checkpoint = open_gguf(file)
    job = {"model": str(file), "texts": list(texts), "tokens": args.tokens, "threads": args.threads}
    version, tokens, logits = llama_cpp("llama.cpp", job, args.python)
    exact = reference64.logits(checkpoint, tokens)
    itself = Measured(exact, exact, tokens)
    about = {"file": file.name, "types": types_of(checkpoint), "positions": len(itself.kl)}
    yield about | {"engine": "float64", "perplexity": itself.surprise.mean().exp().item()}
    first: Measured | None = None
    for engine in args.engines:
        if engine.startswith("outrider"):
            own = outrider(engine, checkpoint, tokens)
        else:
            own = logits if engine == "llama.cpp" else llama_cpp(engine, job, args.python)[2]
        measured = Measured(own, exact, tokens)
        first = first or measured
        yield about | {"engine": engine, "llama_cpp": version, **measured.summary(first)}


def read_texts(paths: Iterable[str], count: int) -> list[str]:
    """A text file is one text; of a file of questions the first ``count``, one category after the other."""
    texts = []
    for path in paths:
        if Path(path).suffix == ".txt":
            texts.append(Path(path).read_text(encoding="utf-8"))
        else:
            texts += [question.text for question in workloads.load(path, count=count)]
    return texts


def show(row: dict[str, Any]) -> str:
    """A line of the table."""
    if row["engine"] == "float64":
        types = ", ".join(f"{count} {kind}" for kind, count in row["types"].items())
        return f"\n{row['file']}: {types}\n  {'float64':24}{'':42}{row['perplexity']:10.4f}"
    return (
        f"  {row['engine']:24}{row['mean_kl']:12.3e}{row['kl_p99']:16.3e}{row['same_argmax']:14.1%}"
        f"{row['perplexity']:10.4f}{row['excess']:14.1e} ± {row['excess_error']:.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="GGUF files")
    parser.add_argument("--texts", nargs="+", default=["mix"], help=".txt files, or questions as for outrider bench")
    parser.add_argument("--count", type=int, default=3, help="questions of each file of them")
    parser.add_argument("--tokens", type=int, default=128, help="most of one text")
    parser.add_argument("--engines", nargs="+", default=["llama.cpp", "outrider"])
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with llama-cpp-python")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    args = parser.parse_args()
    set_num_threads(args.threads)
    texts = read_texts(args.texts, args.count)
    rows = []
    if not args.json:
        print(f"  {'engine':24}" + "  ".join(_COLUMNS))
    for file in args.files:
        for row in compare(file, args, texts):
            rows.append(row)
            if not args.json:
                print(show(row), flush=True)
    print(json.dumps({"machine": f"{platform.machine()}, {os.cpu_count()} cores", "results": rows}))


if __name__ == "__main__":
    main()
