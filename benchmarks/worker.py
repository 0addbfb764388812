"""One contender of ``compare.py``, in a process of its own: JSON requests on stdin, JSON answers on stdout.

Contenders: ``outrider:SOURCE[:K]``, ``transformers`` and ``transformers:lookup[:K]``. The peer's library is imported
here, so that no contender pays memory or threads for another.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[int], int], list[int]]


def outrider(folder: str, source: str, k: int, dtype: str, threads: int) -> tuple[Generate, str]:
    import outrider as o

    llm = o.LLM(folder, draft=source, spec_length=k, options=o.ModelOptions(dtype=dtype), threads=threads)  # type: ignore[arg-type]

    def generate(ids: list[int], max_tokens: int) -> list[int]:
        return llm.generate([ids], o.SamplingParams(max_tokens=max_tokens))[0].token_ids

    return generate, o.__version__


def transformers(folder: str, source: str, k: int, dtype: str, threads: int) -> tuple[Generate, str]:
    import torch
    import transformers as hf

    torch.set_num_threads(threads)
    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    options: dict[str, Any] = {"prompt_lookup_num_tokens": k} if source == "lookup" else {}

    def generate(ids: list[int], max_tokens: int) -> list[int]:
        x = torch.tensor([ids])
        mask = torch.ones_like(x)
        out = model.generate(x, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False, **options)
        tokens: list[int] = out[0, len(ids) :].tolist()
        return tokens

    return generate, hf.__version__


def main() -> None:
    contender, folder, dtype, threads = sys.argv[1:5]
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries that print must not break the protocol
    name, _, rest = contender.partition(":")
    source, _, k = rest.partition(":")
    make = {"outrider": outrider, "transformers": transformers}[name]
    began = time.perf_counter()
    generate, version = make(folder, source or "none", int(k or 10), dtype, int(threads))
    print(json.dumps({"version": version, "load_s": time.perf_counter() - began}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        tokens = generate(request["ids"], request["max_tokens"])
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"tokens": tokens, "s": seconds, "peak_mb": peak}), file=answers, flush=True)


if __name__ == "__main__":
    main()
