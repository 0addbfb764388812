"""Runs one backend in its own process, with JSON on stdin and stdout: ``python -m outrider_lab.bench.worker``.

Backends: ``outrider:SOURCE[:K]``, ``outrider-paged:SOURCE[:K]``, ``transformers``, ``transformers:lookup[:K]``,
``transformers:batch`` (continuous batching), ``vllm:FOLDER`` (safetensors), ``llama.cpp:FILE.gguf`` and
``openvino:FOLDER[:lookup:K]``. The peer's library is imported here, so that backends share neither memory nor threads.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class BatchResult:
    """Tokens of each prompt, and the seconds from the batch's start to each prompt's end."""

    tokens: list[list[int]]
    latencies: list[float]
    extra: dict[str, Any] = field(default_factory=dict)


Generate = Callable[[list[list[int]], int], BatchResult]


def one_by_one(generate: Callable[[list[int], int], list[int]]) -> Generate:
    """A function for many prompts, from an engine that takes one at a time."""

    def all_of_them(prompts: list[list[int]], max_tokens: int) -> BatchResult:
        began, result = time.perf_counter(), BatchResult([], [])
        for prompt in prompts:
            result.tokens.append(generate(prompt, max_tokens))
            result.latencies.append(time.perf_counter() - began)
        return result

    return all_of_them


def outrider(args: argparse.Namespace, source: str, k: Any, kv_cache: Any) -> tuple[Generate, str]:
    import outrider as o
    from outrider.drafters.shared_answers import VARIABLE

    os.environ.setdefault(VARIABLE, "now")  # what is measured does not depend on earlier runs
    llm = o.LLM(
        args.folder,
        draft=source,
        draft_model=args.draft_model if source == "model" else None,
        spec_length=k,
        dtype=args.dtype,
        threads=args.threads,
        kv_cache=kv_cache,
        max_batch_size=16,
        max_seq_len=2048 if llm_context(args.folder) > 2048 else None,
        prefix_reuse=False,  # every round has the same prompts
    )

    def generate(prompts: list[list[int]], max_tokens: int) -> BatchResult:
        stats = llm.engine.stats
        before = (stats.busy_s, stats.overhead_s)
        outputs = llm.generate(prompts, o.SamplingParams(max_tokens=max_tokens))
        share = (stats.overhead_s - before[1]) / (stats.busy_s - before[0])
        latencies = [x.stats.queue_s + x.stats.prefill_s + x.stats.decode_s for x in outputs]
        return BatchResult([x.token_ids for x in outputs], latencies, {"overhead_share": round(share, 4)})

    return generate, o.__version__


def llm_context(folder: str) -> int:
    from pathlib import Path

    return int(json.loads((Path(folder) / "config.json").read_text())["max_position_embeddings"])


def _gguf_of(folder: str) -> str | None:
    """The GGUF file in ``folder`` for transformers; None: safetensors."""
    from pathlib import Path

    return "model.gguf" if (Path(folder) / "model.gguf").exists() else None


def transformers(args: argparse.Namespace, source: str, k: int) -> tuple[Generate, str]:
    import torch
    import transformers as hf

    torch.set_num_threads(args.threads)
    model = hf.AutoModelForCausalLM.from_pretrained(
        args.folder, dtype=getattr(torch, args.dtype), gguf_file=_gguf_of(args.folder)
    ).eval()
    options: dict[str, Any] = {"prompt_lookup_num_tokens": k} if source == "lookup" else {}

    def single(ids: list[int], max_tokens: int) -> list[int]:
        x = torch.tensor([ids])
        mask = torch.ones_like(x)
        out = model.generate(x, attention_mask=mask, max_new_tokens=max_tokens, do_sample=False, **options)
        tokens: list[int] = out[0, len(ids) :].tolist()
        return tokens

    def batch(prompts: list[list[int]], max_tokens: int) -> BatchResult:
        began = time.perf_counter()
        settings = hf.GenerationConfig(
            max_new_tokens=max_tokens, do_sample=False, eos_token_id=model.config.eos_token_id
        )
        done = model.generate_batch(inputs=prompts, generation_config=settings)
        by_prompt = {tuple(o.prompt_ids): list(o.generated_tokens) for o in done.values()}
        seconds = time.perf_counter() - began
        return BatchResult([by_prompt[tuple(p)] for p in prompts], [seconds] * len(prompts))

    return batch if source == "batch" else one_by_one(single), hf.__version__


def llama_cpp(args: argparse.Namespace, file: str) -> tuple[Generate, str]:
    import llama_cpp as peer

    model = peer.Llama(file, n_ctx=4096, n_threads=args.threads, n_threads_batch=args.threads, verbose=False)
    end = model.token_eos()

    def single(ids: list[int], max_tokens: int) -> list[int]:
        model.reset()
        tokens: list[int] = []
        for token in model.generate(ids, temp=0.0, repeat_penalty=1.0):
            tokens.append(token)
            if token == end or len(tokens) == max_tokens:
                break
        return tokens

    return one_by_one(single), peer.__version__


def openvino(args: argparse.Namespace, folder: str, source: str, k: int) -> tuple[Generate, str]:
    import numpy as np
    import openvino as ov
    import openvino_genai as peer

    options: dict[str, Any] = {"prompt_lookup": True} if source == "lookup" else {}
    pipeline = peer.LLMPipeline(folder, "CPU", INFERENCE_NUM_THREADS=args.threads, **options)

    def single(ids: list[int], max_tokens: int) -> list[int]:
        config = peer.GenerationConfig()
        config.max_new_tokens, config.do_sample = max_tokens, False
        if source == "lookup":
            config.num_assistant_tokens, config.max_ngram_size = k, 3
        rows = np.array([ids], dtype=np.int64)
        result = pipeline.generate(peer.TokenizedInputs(ov.Tensor(rows), ov.Tensor(np.ones_like(rows))), config)
        return list(result.tokens[0])

    return one_by_one(single), peer.__version__


def vllm(args: argparse.Namespace, folder: str) -> tuple[Generate, str]:
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": str(args.threads)}
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
    import vllm as peer

    model = peer.LLM(folder, dtype="bfloat16", max_model_len=2048, enforce_eager=True, enable_prefix_caching=False)

    def batch(prompts: list[list[int]], max_tokens: int) -> BatchResult:
        began = time.perf_counter()
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        done = model.generate(asked, peer.SamplingParams(temperature=0, max_tokens=max_tokens), use_tqdm=False)
        seconds = time.perf_counter() - began
        return BatchResult([list(each.outputs[0].token_ids) for each in done], [seconds] * len(prompts))

    return batch, peer.__version__


def make(args: argparse.Namespace) -> tuple[Generate, str]:
    name, _, rest = args.backend.partition(":")
    source, _, k = rest.partition(":")
    if name == "llama.cpp":
        return llama_cpp(args, rest)
    if name == "vllm":
        return vllm(args, rest)
    if name == "openvino":
        folder, _, options = rest.partition(":")
        source, _, k = options.partition(":")
        return openvino(args, folder, source, int(k or 5))
    if name == "transformers":
        return transformers(args, source or "none", int(k or 10))
    kv_cache = "paged" if name == "outrider-paged" else "contiguous"
    return outrider(args, source or "none", int(k) if k.isdigit() else "auto", kv_cache)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--draft-model", default=None)
    args = parser.parse_args()
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries that print must not break the protocol
    began = time.perf_counter()
    try:
        generate, version = make(args)
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": error.name}), file=answers, flush=True)
        return
    print(json.dumps({"version": version, "load_s": time.perf_counter() - began}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        result = generate(request["prompts"], request["max_tokens"])
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer = {"tokens": result.tokens, "latencies": result.latencies, "s": seconds, "peak_mb": peak, **result.extra}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
