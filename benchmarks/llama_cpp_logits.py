"""Logits of llama.cpp for texts: run by ``benchmarks.fidelity`` with an interpreter that has llama-cpp-python.

    python llama_cpp_logits.py JOB.json

A job names ``model`` (a GGUF file), ``texts``, ``tokens`` (most of one text), ``threads``, ``cache`` (type of keys and
values: f32, f16, bf16 or q8_0) and ``out``, a NumPy archive with ``tokens.N`` (int64 [n], the beginning-of-sequence
token included) and ``logits.N`` (float32 [n, vocabulary]) of each text. Prints the version of llama-cpp-python.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp  # type: ignore[import-not-found, unused-ignore]
import numpy as np

CACHES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}  # numbers of ggml's types


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    kind = CACHES[job["cache"]]
    model = llama_cpp.Llama(
        job["model"],
        n_ctx=max(512, job["tokens"]),
        n_batch=job["tokens"],
        n_threads=job["threads"],
        n_threads_batch=job["threads"],
        logits_all=True,
        type_k=kind,
        type_v=kind,
        flash_attn=job["cache"] == "q8_0",  # quantised values need it
        verbose=False,
    )
    out: dict[str, Any] = {}
    for number, text in enumerate(job["texts"]):
        tokens = model.tokenize(text.encode(), add_bos=True)[: job["tokens"]]
        model.reset()
        model.eval(tokens)
        out[f"tokens.{number}"] = np.array(tokens, dtype=np.int64)
        out[f"logits.{number}"] = model.scores[: len(tokens)].copy()
    np.savez(job["out"], **out)
    print(llama_cpp.__version__)


if __name__ == "__main__":
    main()
