"""The adaptive draft length on recorded requests and costs of several machines: no model runs, and no clock.

    python -m benchmarks.draft_length play                  # speed over plain, and regret, by percentile
    python -m benchmarks.draft_length play --set loss_share=1 lent=1
    python -m benchmarks.draft_length play --machines moe-64 moe-64-alike moe-64-apart
    python -m benchmarks.draft_length ablate                # without each of its parts
    python -m benchmarks.draft_length record OUT.npz --questions QUESTIONS

Regret is the share of speed that is lost to the best fixed length of the request. ``--json`` prints one object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.draft_length import record
from benchmarks.draft_length.machines import MACHINES, MIXTURES, Machine
from benchmarks.draft_length.report import Key, MakePolicy, groups, play, summary, table, timed
from outrider.engine.draft_length.adaptive import AdaptiveLength
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.policy import DraftLength
from outrider.engine.draft_length.row_counts import ROWS
from outrider.engine.draft_length.settings import DEFAULT_SETTINGS, DraftLengthSettings
from outrider.engine.request import Request
from outrider.verify.draft import EMPTY

RECORDED = Path(__file__).with_name("recorded.npz")
LENGTHS = (17, 48, 96, 128)  # tokens of the recorded outputs, at most
SOURCES = ("suffix", "lookup", "recycling", "eagle")


class EndlessLevels(AdaptiveLength):
    """Asks for every level."""

    def should_continue(self, request: Request, source: str, paths: Sequence[Sequence[float]]) -> bool:
        return True


class ScoresAlike(AdaptiveLength):
    """Corrects all scores of a source by the same."""

    def _start(self, request: Request) -> Any:
        known = super()._start(request)
        for source in known.sources.values():
            source.acceptance.score_bins[:] = source.acceptance.score_bins[:1] * len(source.acceptance.score_bins)
        return known


def adaptive(
    machine: Machine, settings: DraftLengthSettings, kind: type[AdaptiveLength] = AdaptiveLength
) -> DraftLength:
    return kind(lambda: timed(machine, settings), settings)


def flat_slope(machine: Machine) -> DraftLength:
    cost = StepCost(machine.seconds, [0.0] * len(ROWS))
    return AdaptiveLength(lambda: cost)


def experts_as_timed(machine: Machine) -> DraftLength:
    return AdaptiveLength(lambda: timed(replace(machine, experts=None), DEFAULT_SETTINGS))


def parts() -> dict[str, MakePolicy]:
    """The policy as it is, and without each of its parts."""

    def changed(**values: float) -> MakePolicy:
        return partial(adaptive, settings=replace(DEFAULT_SETTINGS, **values))

    return {
        "all parts": changed(),
        "no bound on losses": changed(loss_share=1.0),
        "half the share of losses": changed(loss_share=DEFAULT_SETTINGS.loss_share / 2),
        "half the credit": changed(credit=DEFAULT_SETTINGS.credit / 2),
        "all credit lent": changed(lent=1.0),
        "all spent at once": changed(at_once=1.0),
        "scores never corrected": changed(prior_variance=1e-9, request_variance=1e-9),
        "requests not told apart": changed(request_variance=1e-9),
        "nothing forgotten": changed(least_variance=0.0),
        "scores corrected alike": partial(adaptive, settings=DEFAULT_SETTINGS, kind=ScoresAlike),
        "T never corrected": changed(weight=0.0),
        "contexts cost nothing": flat_slope,
        "experts cost as timed": experts_as_timed,
        "every level drafted": partial(adaptive, settings=DEFAULT_SETTINGS, kind=EndlessLevels),
    }


def run_play(args: argparse.Namespace) -> None:
    values = {name: float(value) for name, value in (each.split("=") for each in args.set)}
    settings = replace(DEFAULT_SETTINGS, **values)
    played = play(record.load(args.recording), partial(adaptive, settings=settings), args.machines)
    summaries = {key: summary(own) for key, own in groups(played).items()}
    if args.json:
        print(json.dumps({" ".join(key): row for key, row in summaries.items()}))
    else:
        print(*table({key: row for key, row in summaries.items() if "all" in key[:2]}), sep="\n")


def run_ablate(args: argparse.Namespace) -> None:
    recordings, rows = record.load(args.recording), dict[str, Any]()
    whole: Mapping[Key, Mapping[str, Any]] = {}
    for name, make in parts().items():
        if args.only and name not in ("all parts", *args.only):
            continue
        found = {key: summary(own) for key, own in groups(play(recordings, make, args.machines)).items()}
        whole = whole or found
        change = {key: 100 * (row["mean"] / whole[key]["mean"] - 1) for key, row in found.items() if "all" not in key}
        worst, best = min(change, key=change.__getitem__), max(change, key=change.__getitem__)
        rows[name] = {mode: found["all", "all", mode] for mode in ("stream", "cold")} | {
            "worst": [round(change[worst], 1), " ".join(worst)],
            "best": [round(change[best], 1), " ".join(best)],
        }
        told = "  ".join(
            f"{mode} {row['mean']:.3f} p10 {row['speed'][1]:.3f} p1 {row['speed'][0]:.3f}"
            for mode, row in rows[name].items()
            if mode in ("stream", "cold")
        )
        if args.json:
            continue
        print(f"{name:26} {told}  {change[worst]:+.1f}% {' '.join(worst)}, {change[best]:+.1f}% {' '.join(best)}")
    if args.json:
        print(json.dumps(rows))


def run_record(args: argparse.Namespace) -> None:
    from outrider import LLM, SamplingParams, SpeculationParams
    from outrider.engine.draft_length.calibration import calibrate
    from outrider.engine.engine import Engine
    from outrider_lab.data import workloads

    llm = LLM(args.model, draft="suffix,eagle", max_batch_size=1, prefix_reuse=False)
    questions = workloads.read(args.questions, count=args.count)
    prompts = workloads.token_ids(llm.tokenizer, questions)
    params = [
        SamplingParams(max_tokens=LENGTHS[i // 6 % 4], temperature=0.0 if i < args.count / 2 or i % 2 else 1.0, seed=i)
        for i in range(len(prompts))
    ]
    outputs: list[list[int]] = []
    drafts, meta = dict[str, list[Any]](), dict[str, Any]()
    for source in SOURCES:
        recorder = record.Recorder()
        engine: Engine = llm.engine
        engine.use(recorder)
        own, drafts[source] = list[list[int]](), []
        for prompt, each in zip(prompts, params, strict=True):
            recorder.drafts.clear()
            (output,) = llm.generate([prompt], each, speculation=SpeculationParams(draft=source))
            own.append(list(output.token_ids))
            found = {position: draft for (_, position), draft in recorder.drafts.items()}
            drafts[source] += [found.get(position, EMPTY) for position in range(1, len(output.token_ids))]
        assert not outputs or own == outputs
        outputs = own
        meta[f"{source}.seconds"] = np.array(record.proposal_seconds(recorder.costs))
    meta |= {
        "sources": np.array(SOURCES),
        "categories": np.array([question.category for question in questions]),
        "prompts": np.array([len(prompt) for prompt in prompts], np.uint16),
        "greedy": np.array([each.temperature == 0 for each in params]),
        "pass_seconds": calibrate(llm.model).pass_seconds([1], [256]),
    }
    record.save(args.recording, record.pack(outputs, drafts, meta))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run in (("play", run_play), ("ablate", run_ablate)):
        command = commands.add_parser(name)
        command.add_argument("--json", action="store_true", help="print JSON")
        command.add_argument("--recording", type=Path, default=RECORDED)
        if name == "ablate":
            command.add_argument("--only", nargs="+", default=[], help="parts, beside all of them")
        command.add_argument("--machines", nargs="+", default=list(MACHINES), choices=[*MACHINES, *MIXTURES])
        command.set_defaults(run=run)
        if name == "play":
            command.add_argument("--set", nargs="+", default=[], metavar="CONSTANT=VALUE")
    command = commands.add_parser("record")
    command.add_argument("recording", type=Path)
    command.add_argument("--questions", type=Path, required=True)
    command.add_argument("--count", type=int, default=48)
    command.add_argument("--model", default="smollm2-135m-instruct")
    command.set_defaults(run=run_record)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
