"""Table of drafts: every source and head on the same questions, what each is worth, and what it costs.

    python -m benchmarks.drafts question.jsonl -s eagle:5 -s dflash:6@my-block -s medusa:4 -s model:4@my-draft
    python -m benchmarks.drafts question.jsonl -s eagle:5:tree=dynamic --verifiers matching sequoia traversal

A source is ``SOURCE[:K][:VERIFIER][:FIELD=VALUE...]`` as of ``outrider bench``, and may name the folder of its head
or draft model, or the file of its datastore, behind an ``@`` (``suffix:auto@none``: without a datastore). By category
and temperature: acceptance α by position (where all positions before it were accepted), τ, and speed relative to
plain decoding, which takes turns with all of them; each with a 95% bootstrap interval over questions. By source: the
milliseconds of a proposal and of one of its levels (of a block drafter or Medusa, whose levels come from one pass,
their share of it), beside those of the target's run of 1 and of 1 + K rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.decoding import Answer, alpha_at, alphas, decode, load, median_ms, speedup, tau, with_interval
from outrider import LLM, SamplingParams, SpeculationParams
from outrider.cli.shared.options import draft_to_load
from outrider.config.setting import parse_source
from outrider.config.sources import source_record
from outrider.errors import OutriderError
from outrider.utils.working import working
from outrider_lab.bench.backends import OutriderBackend
from outrider_lab.bench.runner import environment
from outrider_lab.data import workloads
from outrider_lab.measure import measure_latency_curve

PLAIN = "plain"
CONTEXT = 256  # tokens before the rows whose run is timed


@dataclass(frozen=True)
class Contender:
    """A source as it is asked for.

    ``folder``: of its head or draft model, or the file of its datastore ("none": it has none); "": what is shipped.
    """

    name: str
    speculation: SpeculationParams
    folder: str = ""

    @property
    def rows(self) -> int:
        """Of the target's run that judges its drafts."""
        length = self.speculation.spec_length
        return 1 + (length if isinstance(length, int) else 4)


def contenders(given: Sequence[str], verifiers: Sequence[str]) -> list[Contender]:
    """Those of the command line, each with every verifier that takes its drafts."""
    found: list[Contender] = []
    for text in given:
        setting, _, folder = text.partition("@")
        base = parse_source(setting, 5)
        label = setting + (f"@{Path(folder).name}" if folder else "")
        for verifier in verifiers or [base.verifier]:
            try:
                own = replace(base, verifier=verifier)  # type: ignore[arg-type]
            except OutriderError as error:
                print(f"{label} with {verifier} is left out: {error}")
                continue
            found.append(Contender(f"{label}, {verifier}" if verifiers else label, own, folder))
    return found


def engines(model: str, chosen: Sequence[Contender], device: str, dtype: str) -> dict[str, LLM]:
    """An engine for each folder, and one for all sources that need none."""
    made: dict[str, LLM] = {}
    for folder in dict.fromkeys(["", *(c.folder for c in chosen)]):
        names = [n for c in chosen if c.folder == folder for n in c.speculation.combination.names]
        small = [n for n in names if source_record(n).min_draft_models]
        stored = folder == "none" or Path(folder).is_file()
        drafts = [folder] if folder and small else []
        heads = [folder] if folder and not small and not stored else []
        source = draft_to_load(model, drafts, names)
        made[folder] = load(model, source, heads, drafts, device, dtype, datastore=folder if stored else "auto")
    return made


def measure(
    llms: Mapping[str, LLM],
    chosen: Sequence[Contender],
    prompts: Sequence[tuple[str, list[int]]],
    params: SamplingParams,
    kept: Path | None = None,
) -> dict[str, list[Answer]]:
    """Every contender and plain decoding on every prompt, in turns whose order moves on.

    ``kept``: a file of finished questions, which are not asked again; each one that finishes is added.
    """
    plain = Contender(PLAIN, SpeculationParams(draft="none"))
    order = [plain, *chosen]
    found = earlier(kept, params, [each.name for each in order])
    if len(found) < len(prompts):
        for each in order:  # sources are built, and shapes captured, before anything is timed
            decode(llms[each.folder], prompts[0][1], replace(params, max_tokens=8), each.speculation, "warm up")
    with working(f"T={params.temperature:g}", len(prompts)) as tick:
        tick.expect(len(prompts), len(found))
        for number, (category, prompt) in enumerate(prompts):
            if number in found:
                continue
            shift, said = number % len(order), dict[str, tuple[Answer, list[int]]]()
            for each in order[shift:] + order[:shift]:
                said[each.name] = decode(llms[each.folder], prompt, params, each.speculation, each.name, category)
            plainly = said[PLAIN][1]
            found[number] = {name: replace(answer, same=tokens == plainly) for name, (answer, tokens) in said.items()}
            if kept is not None:
                line = _setting(params) | {
                    "question": number,
                    "answers": {n: asdict(a) for n, a in found[number].items()},
                }
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            tick(category)
    return {each.name: [found[i][each.name] for i in range(len(prompts))] for each in order}


def earlier(kept: Path | None, params: SamplingParams, names: Sequence[str]) -> dict[int, dict[str, Answer]]:
    """Questions that an interrupted run of the same setting and contenders finished, by number."""
    lines = [json.loads(line) for line in kept.read_text("utf-8").splitlines()] if kept and kept.exists() else []
    same = [x for x in lines if _setting(params).items() <= x.items() and set(x["answers"]) == set(names)]
    return {x["question"]: {name: _answer(fields) for name, fields in x["answers"].items()} for x in same}


def _setting(params: SamplingParams) -> dict[str, Any]:
    return {"temperature": params.temperature, "max_tokens": params.max_tokens}


def _answer(fields: dict[str, Any]) -> Answer:
    return Answer(**fields | {"rounds": tuple((depth, accepted) for depth, accepted in fields["rounds"])})


def row(own: Sequence[Answer], plain: Sequence[Answer]) -> dict[str, Any]:
    """One contender over some questions."""
    return {
        "questions": len(own),
        "identical": sum(a.same for a in own),
        "alpha": [with_interval(own, alpha_at(i)) for i in range(len(alphas(own)))],
        "tau": with_interval(own, tau),
        "speedup": with_interval(list(zip(plain, own, strict=True)), speedup),
        **median_ms(own),
    }


def table(answers: Mapping[str, Sequence[Answer]]) -> dict[str, dict[str, Any]]:
    """By contender and category, "all" first."""
    plain = answers[PLAIN]
    groups = {"all": range(len(plain))} | {
        kind: [i for i, a in enumerate(plain) if a.category == kind] for kind in sorted({a.category for a in plain})
    }
    return {
        name: {kind: row([own[i] for i in at], [plain[i] for i in at]) for kind, at in groups.items()}
        for name, own in answers.items()
    }


def costs(llms: Mapping[str, LLM], chosen: Sequence[Contender], repeat: int) -> dict[int, float]:
    """Median milliseconds of the target's run, by rows."""
    rows = sorted({1, *(c.rows for c in chosen)})
    curve = measure_latency_curve(llms[""].model, context=CONTEXT, rows=rows, repeat=repeat)
    return {n: round(1e3 * seconds, 3) for n, seconds in curve.points.items()}


def markdown(result: Mapping[str, Any]) -> str:
    """Tables for people and for the documentation."""
    runs = ", ".join(f"{n} rows {ms:.2f}" for n, ms in result["target_ms"].items())
    lines = [f"{result['questions']} questions, {result['max_tokens']} tokens; the target's run, ms: {runs}"]
    for temperature, found in result["results"].items():
        kinds = list(next(iter(found.values())))
        depth = max(len(kinds_of["all"]["alpha"]) for kinds_of in found.values())
        lines += ["", f"Temperature {temperature}:", ""]
        head = [
            "draft",
            *(f"α{i + 1}" for i in range(depth)),
            "τ (95%)",
            "times plain (95%)",
            "ms a proposal",
            "a level",
        ]
        lines += _lines(head, [_cells(name, own["all"], depth) for name, own in found.items() if name != PLAIN])
        for title, key in (("τ by category", "tau"), ("Times plain by category", "speedup")):
            lines += ["", f"{title}:", ""]
            body = [
                [name, *(f"{own[kind][key]['value']:.2f}" for kind in kinds)]
                for name, own in found.items()
                if name != PLAIN
            ]
            lines += _lines(["draft", *kinds], body)
    return "\n".join(lines)


def _cells(name: str, own: Mapping[str, Any], depth: int) -> list[str]:
    alpha = [f"{a['value']:.3f}" for a in own["alpha"]]
    spans = [f"{own[k]['value']:.2f} ({own[k]['low']:.2f} to {own[k]['high']:.2f})" for k in ("tau", "speedup")]
    ms = ["" if own[k] is None else f"{own[k]:.2f}" for k in ("proposal_ms", "level_ms")]
    return [name, *alpha, *[""] * (depth - len(alpha)), *spans, *ms]


def _lines(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(arguments)
    chosen = contenders(args.source, args.verifiers)
    llms = engines(args.model, chosen, args.device, args.dtype)
    llm = llms[""]
    questions = workloads.load(args.questions, count=args.count, max_chars=args.max_chars)
    prompts = list(zip([q.category for q in questions], workloads.token_ids(llm.tokenizer, questions), strict=True))
    room = llm.engine.max_seq_len - args.max_tokens
    prompts = [(kind, ids) for kind, ids in prompts if len(ids) < room]
    backend = OutriderBackend(PLAIN, llm, SamplingParams(), SpeculationParams(draft="none"), 1, None)
    found: dict[str, Any] = {**environment(llm, [backend]), "model": args.model, "questions": len(prompts)}
    found |= {"max_tokens": args.max_tokens, "target_ms": costs(llms, chosen, args.repeat), "results": {}}
    for temperature in args.temperatures:
        params = SamplingParams(max_tokens=args.max_tokens, temperature=temperature, seed=1)
        found["results"][f"{temperature:g}"] = table(measure(llms, chosen, prompts, params, args.answers))
    text = markdown(found)
    if args.markdown is not None:
        args.markdown.write_text(text + "\n", encoding="utf-8")
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found) if args.json else text)
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="?", default="mix", help="question.jsonl of Spec-Bench, or mix")
    parser.add_argument("-s", "--source", action="append", required=True, help="may be repeated")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--verifiers", nargs="+", default=[], help="each source with each of these")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--count", type=int, help="questions, round robin over categories")
    parser.add_argument("--max-chars", type=int, help="leave longer questions out")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--answers", type=Path, help="keep finished questions here; a run that was cut short goes on")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--repeat", type=int, default=30, help="runs of the target that are timed")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--markdown", type=Path, help="also write the tables here")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
