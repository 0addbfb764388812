"""Regret of the adaptive length: the share of speed it lacks to the best fixed length, by category, with intervals.

    python -m benchmarks.regret --questions QUESTIONS --count 24
    python -m benchmarks.regret --questions QUESTIONS --draft suffix --clock rows --json

The interval is a paired bootstrap over questions. A regret whose interval holds 0 is within
the noise. On a machine that is busy with something else, ``--clock cpu`` counts processor time, and ``--clock rows``
what forward passes of so many rows took when they were timed at the start, besides what proposals take.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider import LLM, SamplingParams
from outrider.config.setting import parse_source
from outrider.engine.draft_length.calibration import calibrate
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.policy import DraftLength, ProposalCost
from outrider.engine.request import Request
from outrider.verify.draft import Draft
from outrider_lab.bench import runner
from outrider_lab.bench.arrivals import ServedRequest
from outrider_lab.bench.backends import OutriderBackend
from outrider_lab.data import workloads


@dataclass
class RowMeter:
    """Seconds that steps would take if forward passes took what they did when they were timed."""

    policy: DraftLength
    curve: StepCost
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._observe_pass, self._observe_proposals = self.policy.observe_forward_pass, self.policy.observe_proposals
        self.policy.observe_forward_pass = self._scored  # type: ignore[method-assign]
        self.policy.observe_proposals = self._proposed  # type: ignore[method-assign]

    def _scored(self, requests: Sequence[Request], drafts: Sequence[Draft], seconds: float, experts: int = 0) -> None:
        contexts, drafted = [request.num_computed_tokens for request in requests], sum(map(bool, drafts))
        self.seconds += self.curve.pass_seconds([1 + len(draft) for draft in drafts], contexts)
        self.seconds += self.curve.outside(len(requests)) + drafted * self.curve.drafting
        self._observe_pass(requests, drafts, seconds, experts)

    def _proposed(self, request: Request, costs: Mapping[str, ProposalCost]) -> None:
        self.seconds += sum(cost.seconds for cost in costs.values())
        self._observe_proposals(request, costs)


@dataclass(frozen=True)
class Metered:
    """A backend whose clock counts rows, or processor time where there is no meter."""

    inner: OutriderBackend
    meter: RowMeter | None

    @property
    def name(self) -> str:
        return self.inner.name

    def run(self, prompts: Sequence[list[int]], salt: str) -> tuple[list[list[int]], float, list[ServedRequest]]:
        began = self._now()
        tokens, _, served = self.inner.run(prompts, salt)
        return tokens, self._now() - began, served

    def peak_mb(self) -> float:
        return self.inner.peak_mb()

    def _now(self) -> float:
        return time.process_time() if self.meter is None else self.meter.seconds


def main() -> None:
    args = arguments()
    llm = LLM(args.model, draft=args.draft, prefix_reuse=False, max_batch_size=1, progress=not args.json)
    draft = llm.config.speculation.draft
    names = ["none", *(f"{draft}:{length}" for length in args.lengths), f"{draft}:auto"]
    settings = {name: parse_source(name, "auto") for name in names}
    params = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, seed=1)
    backends = [OutriderBackend(name, llm, params, each, 1, None) for name, each in settings.items()]
    questions = workloads.load(args.questions, count=args.count, max_chars=args.max_chars)
    prompts = workloads.token_ids(llm.tokenizer, questions)
    meter = RowMeter(llm.engine._policy, calibrate(llm.model)) if args.clock == "rows" else None
    timed = backends if args.clock == "seconds" else [Metered(each, meter) for each in backends]
    records = runner.run_interleaved(timed, prompts, group=1, rounds=args.rounds)
    found = runner.results(records, questions, 1, settings)
    result = {
        **runner.environment(llm, backends),
        "model": args.model,
        "count": len(questions),
        "rounds": args.rounds,
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "clock": args.clock,
        "results": found,
    }
    print(json.dumps(result) if args.json else "\n".join(table(found, names[-1])))


def table(found: dict[str, Any], auto: str) -> list[str]:
    """A line for each category: the best setting, speeds over none, and the regret."""
    lines = [f"{'':16} {'best':>22} {'its speed':>10} {'auto':>6} {'τ':>6}   regret"]
    for kind in ["all", *found[auto]["categories"]]:
        rows = {name: row["all"] if kind == "all" else row["categories"][kind] for name, row in found.items()}
        own = rows.pop(auto)
        best = max(rows, key=lambda name: rows[name]["speedup"])
        low, high = own["regret_low"], own["regret_high"]
        told = "" if low is None else f" ({100 * low:+.1f} to {100 * high:+.1f})" + ("" if low > 0 else ", noise")
        lines.append(
            f"{kind:16} {best:>22} {rows[best]['speedup']:10.2f} {own['speedup']:6.2f} "
            f"{own.get('mean_acceptance_length', 1.0):6.2f}   {100 * own['regret']:+.1f}%{told}"
        )
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 2, 3, 5, 8])
    parser.add_argument("--questions", default="mix")
    parser.add_argument("--count", type=int)
    parser.add_argument("--max-chars", type=int)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--clock", choices=["seconds", "cpu", "rows"], default="seconds")
    parser.add_argument("--json", action="store_true", help="print one object instead of a table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
