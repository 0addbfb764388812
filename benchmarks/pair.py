"""A target and its drafts: chains beside trees, drafts with and without a second model, matching beside rejection.

    python -m benchmarks.pair
    python -m benchmarks.pair --model smollm2-135m-instruct --no-draft-model --draft-layers 20 --prompts questions \\
        --settings "draft=lookahead spec_length=5" "draft=layer_skip spec_length=3"

A setting is what a request may choose, field by field (``SpeculationParams``). By default TinyLlama-1.1B is drafted for
by stories15M, as in the 2023 paper's experiments with small drafts. Reports acceptance rate α, mean acceptance length τ
and speed over plain decoding, interleaved; ``cpu`` is the same ratio in processor time, for machines that are busy with
something else. Ends with the acceptance by rank of the widest shape, and the best shapes that follow from it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.output import Output
from outrider.verify.shapes import RankAcceptance, expected_accepted, optimal
from outrider_lab.data import workloads

STORIES = [story.text for story in workloads.STORIES]
MODES = {"greedy": SamplingParams(), "temperature 1": SamplingParams(temperature=1.0, seed=11)}
SETTINGS = [
    "draft=model spec_length=2",
    "draft=model spec_length=4",
    "draft=model spec_length=4 verifier=rejection",
    "draft=model spec_length=4 tree=2,2,1,1",
    "draft=model spec_length=4 tree=4,2,1",
    "draft=model spec_length=4 tree=dynamic tree_nodes=8",
    "draft=model spec_length=4 tree=dynamic tree_nodes=16",
]


@dataclass
class Tally:
    """What one setting gave and took."""

    outputs: list[Output] = field(default_factory=list)  # of the first round
    wall: list[float] = field(default_factory=list)  # seconds of each round
    cpu: list[float] = field(default_factory=list)

    def row(self, plain: Tally) -> dict[str, Any]:
        tokens = sum(len(o.token_ids) for o in self.outputs)
        baseline = sum(len(o.token_ids) for o in plain.outputs)
        drafted = sum(o.stats.num_draft_tokens for o in self.outputs)
        accepted = sum(o.stats.num_accepted_draft_tokens for o in self.outputs)
        rates = [tokens / s for s in self.wall]

        def ratio(own: list[float], others: list[float]) -> float:
            return round(statistics.median(tokens / a * b / baseline for a, b in zip(own, others, strict=True)), 2)

        return {
            "alpha": round(accepted / drafted, 3) if drafted else None,
            "tau": round(tokens / sum(o.stats.target_runs for o in self.outputs), 2),
            "tokens_per_s": round(statistics.median(rates), 1),
            "speedup": ratio(self.wall, plain.wall),
            "cpu": ratio(self.cpu, plain.cpu),
            "identical": sum(a.token_ids == b.token_ids for a, b in zip(self.outputs, plain.outputs, strict=True)),
        }


def main() -> None:
    args = arguments()
    llm = LLM(
        args.model,
        draft="layer_skip" if args.draft_layers else "none" if args.no_draft_model else "model",
        draft_model=None if args.no_draft_model else args.draft_model,
        draft_layers=args.draft_layers,
        max_batch_size=1,
        prefix_reuse=False,
        progress=True,
    )
    settings = {"plain": SpeculationParams(draft="none")} | {text: setting(text) for text in args.settings}
    prompts: list[Any] = STORIES if args.prompts == "stories" else [[ask(q.text)] for q in workloads.BUILT_IN]
    rows: dict[str, Any] = {}
    for mode in args.modes:
        params = replace(MODES[mode], max_tokens=args.max_tokens)
        print(mode)
        tallies = {name: Tally() for name in settings}
        for turn in range(-1, args.rounds):  # one round to warm up, not counted
            for name, speculation in settings.items():
                run(llm, prompts[:1] if turn < 0 else prompts, params, speculation, tallies[name], turn)
        for name, tally in tallies.items():
            row = rows[f"{mode}, {name}"] = tally.row(tallies["plain"])
            print(f"  {name:52} {row}", flush=True)
        shapes = best_shapes(tallies)
        print(*(f"  {shape}" for shape in shapes), sep="\n", flush=True)
        rows[f"{mode}, shapes"] = shapes
    result = {
        "date": datetime.date.today().isoformat(),
        "model": args.model,
        "draft_model": None if args.no_draft_model else args.draft_model,
        "draft_layers": args.draft_layers,
        "prompts": len(prompts),
        "rounds": args.rounds,
        "results": rows,
    }
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tinyllama-1.1b-chat")
    parser.add_argument("--draft-model", nargs="+", default=["stories15m"])
    parser.add_argument("--no-draft-model", action="store_true")
    parser.add_argument("--draft-layers", type=int)
    parser.add_argument("--settings", nargs="+", default=SETTINGS)
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--prompts", choices=["stories", "questions"], default="stories")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def setting(text: str) -> SpeculationParams:
    """``"draft=model spec_length=4"`` as what it says."""
    pairs = (part.split("=", 1) for part in text.split())
    values: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in pairs}
    return SpeculationParams(**values)


def ask(text: str) -> Mapping[str, str]:
    return {"role": "user", "content": text}


def run(
    llm: LLM,
    prompts: list[Any],
    params: SamplingParams,
    speculation: SpeculationParams,
    tally: Tally,
    turn: int,
) -> None:
    """One round of a setting; ``turn`` 0 keeps outputs, and -1 nothing."""
    wall, cpu = time.perf_counter(), time.process_time()
    for prompt in prompts:
        answer = llm.generate if isinstance(prompt, str) else llm.chat
        output = answer(prompt, params, speculation=speculation)
        if turn == 0:
            tally.outputs.append(output)
    if turn >= 0:
        tally.wall.append(time.perf_counter() - wall)
        tally.cpu.append(time.process_time() - cpu)


def best_shapes(tallies: Mapping[str, Tally]) -> list[str]:
    """For settings that branched: acceptance by rank, and Sequoia's shapes of 8 and 16 nodes for it."""
    lines: list[str] = []
    for name, tally in tallies.items():
        measured = RankAcceptance()
        for output in tally.outputs:
            measured.add(output.stats.by_rank)
        if measured.rates:
            rates = ", ".join(f"{rate:.2f}" for rate in measured.rates[:6])
            for nodes in (8, 16):
                shape = optimal(measured.rates, nodes, 6)
                tau = 1 + expected_accepted(shape, measured.rates)
                tree = ",".join(map(str, shape))
                lines.append(f"{name}: kept by rank {rates}; best {nodes} nodes, tau {tau:.2f}: tree={tree}")
    return lines


if __name__ == "__main__":
    main()
