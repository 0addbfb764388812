"""Beam search with drafts: are they the beams of plain beam search, and transformers' too? What do drafts save?

    python -m benchmarks.beams --questions question.jsonl --count 50 --max-tokens 64
    python -m benchmarks.beams --questions question.jsonl --count 50 --transformers FOLDER --dtype float32

Each question is searched without drafts and with each source, in turn. Scores must agree to the last bit without and
with drafts, and with transformers (``--transformers``, the model's folder) within rounding.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from outrider import LLM, Output, SamplingParams, SpeculationParams
from outrider.data import workloads


class Transformers:
    """The same search by transformers."""

    def __init__(self, folder: Path, eos: tuple[int, ...]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._eos = list(eos)

    def search(self, prompt: list[int], params: SamplingParams) -> list[tuple[list[int], float]]:
        """Outputs and scores, best first."""
        import torch

        with torch.inference_mode():
            out = self._model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                num_beams=params.beam_width,
                num_return_sequences=params.n,
                max_new_tokens=params.max_tokens,
                do_sample=False,
                repetition_penalty=1.0,
                eos_token_id=self._eos,
                pad_token_id=self._eos[0],
                output_scores=True,
                return_dict_in_generate=True,
            )
        found: list[tuple[list[int], float]] = []
        for sequence, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
            tokens = sequence[len(prompt) :]
            end = next((i + 1 for i, token in enumerate(tokens) if token in self._eos), len(tokens))
            found.append((tokens[:end], score))
        return found


def agree(outputs: list[Output], theirs: list[tuple[list[int], float]]) -> tuple[bool, float]:
    """Whether the outputs are the same, and the largest difference of a score."""
    same = [output.token_ids for output in outputs] == [tokens for tokens, _ in theirs]
    return same, max(abs((output.score or 0.0) - score) for output, (_, score) in zip(outputs, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--questions", default="mix", help="Spec-Bench JSONL; a built-in mix if left out")
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--beam-width", type=int, default=4)
    parser.add_argument("--sources", nargs="+", default=["suffix+recycling", "lookup"])
    parser.add_argument("--spec-length", default="auto", type=lambda text: int(text) if text.isdigit() else text)
    parser.add_argument("--transformers", type=Path, help="the model's folder: compare with transformers, in float32")
    args = parser.parse_args()

    width = args.beam_width
    params = SamplingParams(beam_width=width, n=width, max_tokens=args.max_tokens)
    llm = LLM(args.model, dtype=args.dtype, threads=args.threads)
    theirs = None if args.transformers is None else Transformers(args.transformers, llm.model.config.eos_token_ids)
    seconds: defaultdict[str, float] = defaultdict(float)
    totals: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    differences = far = 0
    largest = 0.0
    questions = workloads.load(args.questions, count=args.count)
    for number, question in enumerate(questions, 1):
        prompt = workloads.token_ids(llm.tokenizer, [question])[0]
        llm.generate([prompt], SamplingParams(max_tokens=1))  # the prompt is read once, and not part of the times
        plain: list[Output] = []
        for source in ("none", *args.sources):
            speculation = SpeculationParams(draft=source, spec_length=args.spec_length)
            began = time.perf_counter()
            outputs = llm.generate([prompt], params, speculation=speculation)
            seconds[source] += time.perf_counter() - began
            plain = plain or outputs
            stats, total = outputs[0].stats, totals[source, question.category]
            total[0] += stats.beam_steps
            total[1] += stats.target_runs
            total[2] += stats.num_draft_tokens
            total[3] += stats.num_accepted_draft_tokens
            same = [(o.token_ids, o.score) for o in outputs] == [(o.token_ids, o.score) for o in plain]
            differences += not same
            if stats.draft_error:
                raise SystemExit(f"{source} failed: {stats.draft_error}")
        if theirs is not None:
            began = time.perf_counter()
            found = theirs.search(prompt, params)
            seconds["transformers"] += time.perf_counter() - began
            same, apart = agree(plain, found)
            far, largest = far + (not same), max(largest, apart)
        print(f"\r{number}/{len(questions)} questions, {differences} differences", end="", flush=True)
    print()
    for (source, category), (steps, runs, drafted, accepted) in totals.items():
        kept = f", {accepted} of {drafted} draft tokens" if drafted else ""
        print(f"{source:18} {category:16} {steps} steps in {runs} runs ({steps / runs:.2f}){kept}")
    for source, spent in seconds.items():
        print(f"{source:18} {spent:.2f} s, {seconds['none'] / spent:.2f}x")
    if theirs is not None:
        print(f"transformers: {len(questions) - far} of {len(questions)} the same, scores within {largest:.1e}")
    sums = {
        source: [sum(t[i] for (s, _), t in totals.items() if s == source) for i in range(4)] for source, _ in totals
    }
    print(json.dumps({"differences": differences, "seconds": seconds, "totals": sums, "transformers_differ": far}))
    raise SystemExit(1 if differences else 0)


if __name__ == "__main__":
    main()
