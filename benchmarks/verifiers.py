"""Every verifier on the same drafts of a real pair of models: how much each keeps, and what judging costs.

    python -m benchmarks.verifiers
    python -m benchmarks.verifiers --model smollm2-135m-instruct --draft-model smollm2-135m-instruct --draft-dtype int8

The target writes a continuation of each prompt. At points along it the draft model proposes a chain and a tree, the
target scores them, and every verifier judges the same rows of p and q. Where verifiers want drafts drawn differently
(coupled with the target's noise; siblings independent or without replacement) they share contexts, shape and q.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pair import STORIES
from outrider import LLM, SamplingParams, SpeculationParams
from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.engine.request import Request
from outrider.engine.runner import ScheduledRequest, run_target
from outrider.models.base import Model
from outrider.verify.arrays import Floats, host
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.noise import Noise
from outrider.verify.verifiers import make_verifier
from outrider.verify.verifiers.base import DraftSampler, Siblings, Verifier
from outrider.weights.hub.catalog import resolve
from outrider.weights.loader import load_model

SHAPES: dict[str, tuple[int, ...]] = {"chain of 4": (1, 1, 1, 1), "tree 3-2-1": (3, 2, 1)}
SETTINGS = [
    SpeculationParams(draft="none"),
    *(
        SpeculationParams(verifier=v)
        for v in ("rejection", "block", "iterative", "specinfer", "sequoia", "traversal", "univer")
    ),
    *(SpeculationParams(verifier="lenient", lenience=x) for x in (1.0, 0.5, 0.3, 0.1)),
    SpeculationParams(verifier="typical"),
]


class Scorer:
    """A model that reads one text and scores drafts behind it."""

    def __init__(self, model: Model, max_seq_len: int) -> None:
        self._model = model
        self._cache = model.new_cache(CacheSpec(max_seq_len=max_seq_len))
        self._slot = self._cache.allocate()

    def restart(self) -> None:
        self._cache.truncate_to(self._slot, 0)

    def score(self, tokens: Sequence[int], draft: Draft) -> Floats:
        """Logits [1 + n, vocab] after a text that continues the one before, and after each node of a draft."""
        request = Request("", tuple(tokens), SamplingParams(), SpeculationParams(draft="none"), frozenset())
        request.slot, request.num_computed_tokens = self._slot, self._cache.length(self._slot)
        self._cache.extend(self._slot, request.num_pending_tokens + len(draft))
        scheduled = [ScheduledRequest(request, request.num_pending_tokens, draft)]
        (output,) = run_target(self._model, self._cache, scheduled, self._model.config.vocab_size)
        self._cache.truncate_to(self._slot, len(tokens) - 1)
        return host(output.logits)


@dataclass
class Tally:
    """What a verifier kept of the drafts it was shown, and the time it took."""

    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    seconds: list[float] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        return {
            "alpha": round(self.accepted / self.drafted, 3),
            "tau": round(1 + self.accepted / self.steps, 3),
            "ms": round(statistics.median(self.seconds) * 1e3, 2),
        }


@dataclass(frozen=True)
class Bench:
    target: Scorer
    small: Scorer
    vocab: int
    seeds: int

    def judge(self, tokens: list[int], split: int, params: SamplingParams, tallies: dict[Any, Tally]) -> None:
        """Draft at the end of ``tokens``, in every shape and manner, and let every verifier judge."""
        context = Context(tokens[:split], tokens[split:])
        for shape, widths in SHAPES.items():
            for seed in range(self.seeds):
                scored: dict[tuple[bool, Siblings | None], tuple[Draft, Floats]] = {}
                for speculation in SETTINGS:
                    verifier, noise = make_verifier(speculation), Noise(seed)
                    if max(widths) > 1 and not verifier.takes_trees:
                        continue
                    manner = (verifier.shares_noise, verifier.siblings if max(widths) > 1 else None)
                    if manner not in scored:
                        draws = DraftSampler(noise, len(tokens), verifier.shares_noise, verifier.siblings)
                        draft = self._grow(tokens, context, params, widths, draws)
                        scored[manner] = draft, self.target.score(tokens, draft)
                    self._time(*scored[manner], verifier, noise, params, context, tallies[shape, _label(speculation)])

    def _time(
        self,
        draft: Draft,
        logits: Floats,
        verifier: Verifier,
        noise: Noise,
        params: SamplingParams,
        context: Context,
        tally: Tally,
    ) -> None:
        p = TargetRows(logits, params, context, draft, vocab_size=self.vocab)
        began = time.perf_counter()
        verdict = verifier(draft, p, noise, len(context.prompt) + len(context.output))
        tally.seconds.append(time.perf_counter() - began)
        tally.drafted += len(draft)
        tally.accepted += len(verdict.path)
        tally.steps += 1

    def _grow(
        self, tokens: list[int], context: Context, params: SamplingParams, widths: tuple[int, ...], draws: DraftSampler
    ) -> Draft:
        """A static tree: each level drawn from the draft model's rows after the level above."""
        draft, rows, level = EMPTY, list[Floats](), [-1]
        for depth, width in enumerate(widths):
            q = TargetRows(self.small.score(tokens, draft), params, context, draft, vocab_size=self.vocab)
            nodes, parents = list(draft.tokens), list(draft.parents)
            for parent in level:
                row = q.log_weights(parent + 1)
                drawn = draws.siblings(row, width, depth=depth, node=len(nodes))
                nodes += drawn.tokens
                parents += [parent] * len(drawn.tokens)
                rows += drawn.rows
            level = list(range(len(draft), len(nodes)))
            draft = Draft(tuple(nodes), tuple(parents), np.stack(rows))
        return draft


def _label(speculation: SpeculationParams) -> str:
    return speculation.verifier + ("" if speculation.lenience is None else f" l={speculation.lenience:g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tinyllama-1.1b-chat")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--draft-model", default="stories15m")
    parser.add_argument("--draft-dtype", default="auto")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.7])
    parser.add_argument("--tokens", type=int, default=48, help="of each continuation")
    parser.add_argument("--every", type=int, default=3, help="tokens between points where drafts are made")
    parser.add_argument("--prompts", type=int, default=len(STORIES))
    parser.add_argument("--seeds", type=int, default=2, help="drafts of each kind at each point")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    llm = LLM(args.model, draft="none", dtype=args.dtype, max_batch_size=1, progress=not args.json)
    small = load_model(resolve(args.draft_model, progress=not args.json), ModelOptions(dtype=args.draft_dtype))
    vocab = min(llm.engine.vocab_size, small.config.vocab_size)
    bench = Bench(Scorer(llm.model, 512), Scorer(small, 256), vocab, args.seeds)
    results: list[dict[str, Any]] = []
    for temperature in args.temperatures:
        params = SamplingParams(temperature=temperature, seed=3, max_tokens=args.tokens, ignore_eos=True)
        tallies: dict[Any, Tally] = defaultdict(Tally)
        for story in STORIES[: args.prompts]:
            output = llm.generate(story, params)
            prompt = llm.tokenizer.encode(story)
            bench.target.restart()
            bench.small.restart()
            for end in range(1, args.tokens, args.every):
                bench.judge([*prompt, *output.token_ids[:end]], len(prompt), params, tallies)
        for (shape, name), tally in tallies.items():
            results.append({"temperature": temperature, "shape": shape, "verifier": name} | tally.row())
            if not args.json:
                print("  ".join(f"{key} {value}" for key, value in results[-1].items()), flush=True)
    result = {"date": datetime.date.today().isoformat(), **vars(args), "results": results}
    result["out"] = str(args.out) if args.out else None
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
