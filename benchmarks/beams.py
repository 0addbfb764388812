"""Beam search with drafts: are they the beams of plain beam search, and transformers' too? What do drafts save?

    python -m benchmarks.beams --questions question.jsonl --count 50 --max-tokens 64
    python -m benchmarks.beams --model FOLDER --dtype float32 --transformers FOLDER --questions question.jsonl
    python -m benchmarks.beams --draft-model FOLDER --sources model suffix+recycling --beam-width 2 4 8

Each question is searched without drafts and with each source, in turn. Scores must agree to the last bit without and
with drafts, and with transformers (``--transformers``, the model's folder) within rounding.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider import LLM, Output, SamplingParams, SpeculationParams
from outrider.engine.stats import RequestStats
from outrider_lab.data import workloads


class Transformers:
    """The same search by transformers."""

    def __init__(self, folder: Path, eos: tuple[int, ...]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._eos = list(eos)

    def search(self, prompt: list[int], params: SamplingParams) -> tuple[list[tuple[list[int], float]], float]:
        """Outputs and scores, best first; and the seconds that a search takes but for its first token.

        So the reading of the prompt does not count, as it does not on our side.
        """
        import torch
        from transformers import LogitsProcessorList

        first: list[float] = []

        def note(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            first.append(time.perf_counter())  # at the first call the prompt has been read
            return scores

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
                logits_processor=LogitsProcessorList([note]),
            )
        seconds = time.perf_counter() - first[0]
        found: list[tuple[list[int], float]] = []
        for sequence, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
            tokens = sequence[len(prompt) :]
            end = next((i + 1 for i, token in enumerate(tokens) if token in self._eos), len(tokens))
            found.append((tokens[:end], score))
        return found, seconds


def agree(outputs: list[Output], theirs: list[tuple[list[int], float]]) -> tuple[bool, float]:
    """Whether the outputs are the same, and the largest difference of a score."""
    same = [output.token_ids for output in outputs] == [tokens for tokens, _ in theirs]
    return same, max(abs((output.score or 0.0) - score) for output, (_, score) in zip(outputs, theirs, strict=True))


@dataclass
class Total:
    """Of one way to search, over the questions of a category."""

    seconds: float = 0.0
    stats: RequestStats = field(default_factory=RequestStats)

    def add(self, outputs: list[Output], seconds: float) -> None:
        self.seconds += seconds
        self.stats.add(outputs[0].stats)

    def as_dict(self) -> dict[str, float]:
        stats = self.stats
        return {
            "seconds": self.seconds,
            "steps": stats.beam_steps,
            "runs": stats.target_runs,
            "drafted": stats.num_draft_tokens,
            "accepted": stats.num_accepted_draft_tokens,
        }

    def __str__(self) -> str:
        seconds, steps, runs, drafted, accepted = self.as_dict().values()
        kept = f", {accepted} of {drafted} draft tokens" if drafted else ""
        return f"{seconds:.2f} s" + (f", {steps} steps in {runs} runs ({steps / runs:.2f}){kept}" if runs else "")


class Comparison:
    """All ways to search, in turn, question by question."""

    def __init__(self, llm: LLM, args: argparse.Namespace) -> None:
        self._llm, self._args = llm, args
        eos = llm.model.config.eos_token_ids
        self._theirs = None if args.transformers is None else Transformers(args.transformers, eos)
        self.totals: defaultdict[tuple[int, str, str], Total] = defaultdict(Total)  # by width, way and category
        self.differences = self.far = 0
        self.largest = 0.0

    def ask(self, question: workloads.Question, width: int) -> None:
        """Search without drafts, with each source, and by transformers."""
        llm, args = self._llm, self._args
        prompt = workloads.token_ids(llm.tokenizer, [question])[0]
        params = SamplingParams(beam_width=width, n=width, max_tokens=args.max_tokens)
        llm.generate([prompt], SamplingParams(max_tokens=1))  # the prompt is read once, and not part of our times
        plain: list[Output] = []
        for source in ("none", *args.sources):
            speculation = SpeculationParams(draft=source, spec_length=args.spec_length)
            began = time.perf_counter()
            outputs = llm.generate([prompt], params, speculation=speculation)
            self.totals[width, source, question.category].add(outputs, time.perf_counter() - began)
            plain = plain or outputs
            self.differences += [(o.token_ids, o.score) for o in outputs] != [(o.token_ids, o.score) for o in plain]
            if outputs[0].stats.draft_error:
                raise SystemExit(f"{source} failed: {outputs[0].stats.draft_error}")
        if self._theirs is not None:
            self._compare(question, plain, *self._theirs.search(prompt, params), width)

    def _compare(
        self,
        question: workloads.Question,
        plain: list[Output],
        found: list[tuple[list[int], float]],
        seconds: float,
        width: int,
    ) -> None:
        self.totals[width, "transformers", question.category].seconds += seconds
        same, apart = agree(plain, found)
        self.far, self.largest = self.far + (not same), max(self.largest, apart)
        if not same:
            print(f"\n{question.id}: {[(o.token_ids, o.score) for o in plain]}, transformers {found}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft-model", help="for the source model")
    parser.add_argument("--draft-dtype", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--questions", default="mix", help="Spec-Bench JSONL; a built-in mix if left out")
    parser.add_argument("--categories", nargs="+", help="only these")
    parser.add_argument("--max-chars", type=int, help="leave out longer questions")
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--beam-width", type=int, nargs="+", default=[4])
    parser.add_argument("--sources", nargs="*", default=["suffix+recycling", "lookup"])
    parser.add_argument("--spec-length", default="auto", type=lambda text: int(text) if text.isdigit() else text)
    parser.add_argument("--transformers", type=Path, help="the model's folder: compare with transformers, in float32")
    args = parser.parse_args()

    more = {} if args.draft_model is None else {"draft_model": args.draft_model, "draft_dtype": args.draft_dtype}
    llm = LLM(args.model, dtype=args.dtype, threads=args.threads, **more)
    categories = None if args.categories is None else set(args.categories)
    questions = workloads.load(args.questions, count=args.count, categories=categories, max_chars=args.max_chars)
    llm.engine.calibrate()  # or it would be part of the first search's time
    comparison = Comparison(llm, args)
    for number, question in enumerate(questions, 1):
        for width in args.beam_width:
            comparison.ask(question, width)
        print(f"\r{number}/{len(questions)} questions, {comparison.differences} differences, "
              f"{comparison.far} from transformers", end="", flush=True)  # fmt: skip
    print()
    for (width, way, category), total in comparison.totals.items():
        plain = comparison.totals[width, "none", category].seconds
        print(f"{width} beams  {way:18} {category:16} {plain / total.seconds:.2f}x, {total}")
    asked = len(questions) * len(args.beam_width)
    if args.transformers is not None:
        print(f"transformers: {asked - comparison.far} of {asked} the same, scores within {comparison.largest:.1e}")
    totals = {"/".join(map(str, key)): total.as_dict() for key, total in comparison.totals.items()}
    print(json.dumps({"differences": comparison.differences, "transformers_differ": comparison.far, "totals": totals}))
    raise SystemExit(1 if comparison.differences else 0)


if __name__ == "__main__":
    main()
