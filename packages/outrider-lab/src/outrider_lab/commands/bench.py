"""``outrider bench``: times a workload with several draft sources and engines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.shared import flags
from outrider.cli.shared import options as o
from outrider.cli.shared.generated import Given, options_from
from outrider.config import EngineConfig, SamplingParams, SpeculationParams
from outrider.config.combination import AUTO
from outrider.config.setting import parse_source
from outrider.errors import InvalidRequestError
from outrider.utils.whole_files import check_place, write_text
from outrider_lab.data.suites import MAX_TOKENS, SUITES

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider_lab.bench.backends import BenchBackend
    from outrider_lab.data.workloads import Question

_OPTIONS = ("draft_model", "heads", "datastore", "spec_length", "temperature", "kv_cache", *o.LOADING)

Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        "-s",
        help="SOURCE[:K][:VERIFIER][:FIELD=VALUE...]; may be repeated. The first is the baseline.",
        show_default="none and all others; beside peers none and auto",
    ),
]
Peers = Annotated[
    list[str] | None,
    typer.Option(
        help="llama.cpp[:FILE.gguf], transformers[:lookup:K], openvino:FOLDER[:lookup:K], "
        "or the URL of a completions server. Without FILE, the model's own."
    ),
]
Prompts = Annotated[
    str, typer.Option(help="mix, stories, a text, or JSONL as of Spec-Bench, ShareGPT, OpenAI messages or HumanEval.")
]
Suite = Annotated[
    str | None,
    typer.Option(
        help="Your copy of spec-bench, speed-bench or humaneval.",
        autocompletion=flags.completer(lambda: list(SUITES)),
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", "-n", help="Tokens of each answer, at most.", show_default="96; 4096 with --suite",
        rich_help_panel=flags.CORE.group["max_tokens"],
    ),
]  # fmt: skip
Count = Annotated[int | None, typer.Option(help="Prompts to use.", show_default="all")]
MaxChars = Annotated[
    int | None, typer.Option(help="Leave out texts of at least this many characters.", show_default="none", hidden=True)
]
Category = Annotated[list[str] | None, typer.Option(help="Only this category; may be repeated.", hidden=True)]
Concurrency = Annotated[list[int] | None, typer.Option(help="Requests at once; repeat to sweep.", show_default="1")]
Rate = Annotated[float | None, typer.Option(help="Requests a second, arriving at random, in place of --concurrency.")]
Rounds = Annotated[int, typer.Option(help="Times to repeat all prompts.")]
Python = Annotated[str | None, typer.Option(help="An interpreter that has the peers' libraries.", hidden=True)]


@options_from(SpeculationParams, EngineConfig, SamplingParams, only=_OPTIONS)
def bench(
    model: o.Model = o.DEFAULT_MODEL,
    source: Sources = None,
    peer: Peers = None,
    prompts: Prompts = "mix",
    suite: Suite = None,
    count: Count = None,
    max_chars: MaxChars = None,
    category: Category = None,
    concurrency: Concurrency = None,
    rate: Rate = None,
    rounds: Rounds = 3,
    max_tokens: MaxTokens = None,
    python: Python = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of the speedups here.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON here.")] = None,
    *,
    given: Given,
    as_json: o.AsJson = False,
) -> None:
    """Time a workload, backends taking turns prompt by prompt, and report paired ratios with 95% intervals.

    Times are of whole requests, the reading of prompts included. Peers are greedy. Ctrl-C ends the run early, with the
    results so far.

    Example: outrider bench --model model.Q4_K_M.gguf --peer llama.cpp
    """
    sweep = concurrency or [1]
    if min(sweep) < 1 or rounds < 1 or (rate is not None and rate <= 0):
        raise InvalidRequestError(f"concurrency={min(sweep)}, rounds={rounds}, rate={rate}: use positive numbers")
    _check_suite(suite, prompts, rate)
    check_place(plot, out)
    cap = max_tokens if max_tokens is not None else MAX_TOKENS if suite else 96
    params = SamplingParams(**o.own(SamplingParams, given), max_tokens=cap)
    params = params if params.greedy else replace(params, seed=1)
    from outrider.utils.working import working
    from outrider_lab.bench import runner, show, suite_report
    from outrider_lab.data import suites, workloads

    chosen: dict[str, Any] = {"count": count, "categories": set(category or ()) or None, "max_chars": max_chars}
    questions = suites.load(suite, Path(prompts), **chosen) if suite else workloads.load(prompts, **chosen)
    with working("loading"):
        llm, settings = _load(model, o.engine(given), source or [], max([*sweep, 8 if rate else 1]), bool(peer))
        peers = _peers(peer or [], llm, python, params, max(sweep))
    questions = _that_fit(llm, questions) if suite else questions
    found, backends = _measure(llm, settings, peers, questions, params, sweep, rounds, rate, talk=suite is not None)
    result = {**runner.environment(llm, backends), "model": model, "draft_model": o.engine(given).get("draft_model"),
              "prompts": prompts, "suite": suite, "count": len(questions), "rounds": rounds,
              "max_tokens": params.max_tokens, "temperature": params.temperature, "rate": rate,
              "results": found}  # fmt: skip
    if out is not None:
        write_text(out, json.dumps(result, indent=1) + "\n")
    if plot is not None and suite:
        suite_report.plot(plot, next(iter(found.values())), suite, f"{SUITES[suite].title}, {model}")
    elif plot is not None:
        show.plot(plot, found, f"{model}, {len(questions)} prompts, {rounds} rounds")
    report = suite_report.report if suite else show.report
    typer.echo(json.dumps(result) if as_json else "\n".join(report(result)))


def _check_suite(suite: str | None, prompts: str, rate: float | None) -> None:
    if suite is None:
        return
    if suite not in SUITES:
        raise InvalidRequestError(f"suite={suite!r} is unknown: use {', '.join(SUITES)}")
    if prompts == "mix":
        raise InvalidRequestError(f"suite={suite!r} comes with no questions: give your copy with --prompts FILE")
    if rate is not None:
        raise InvalidRequestError(f"suite={suite!r} and rate={rate:g}: use --concurrency, as conversations have turns")


def _that_fit(llm: LLM, questions: Sequence[Question]) -> list[Question]:
    """The questions whose first turn leaves room for an answer; a line on stderr counts the others."""
    from outrider_lab.bench.conversing import first_turn

    context = llm.engine.max_seq_len
    found = [question for question in questions if len(first_turn(llm.tokenizer, question)) < context]
    if not found:
        raise InvalidRequestError(f"all {len(questions)} questions are longer than the context of {context} tokens")
    if len(found) < len(questions):
        typer.echo(
            f"{len(questions) - len(found)} questions exceed the context of {context} tokens: left out", err=True
        )
    return found


def _load(
    model: str, options: dict[str, Any], sources: Sequence[str], batch: int, beside_peers: bool
) -> tuple[LLM, dict[str, SpeculationParams]]:
    """The model with the heads and drafts of ``sources``, and their settings by name.

    Without sources: plain decoding, and all sources there are or, beside peers, the model's default.
    """
    k = options.pop("spec_length", SpeculationParams.spec_length)
    settings = {name: parse_source(name, k) for name in sources}
    named = [name for s in settings.values() for name in s.combination.names] if settings else None
    usual = beside_peers and not settings
    draft = AUTO if usual else o.draft_to_load(model, options.get("draft_model") or (), named)
    llm = o.load(model, **options, draft=draft, prefix_reuse=False, max_batch_size=batch)
    there = [llm.speculation.draft] if usual else llm.drafters
    return llm, settings or {name: parse_source(name, k) for name in dict.fromkeys(("none", *there))}


def _measure(
    llm: LLM,
    settings: Mapping[str, SpeculationParams],
    peers: Sequence[BenchBackend],
    questions: Sequence[Question],
    params: SamplingParams,
    sweep: Sequence[int],
    rounds: int,
    rate: float | None,
    *,
    talk: bool,
) -> tuple[dict[int, dict[str, Any]], list[BenchBackend]]:
    """Results by concurrency, and the backends that were timed. ``talk``: with all turns of each question."""
    from outrider.utils.working import working
    from outrider_lab.bench import runner
    from outrider_lab.bench.backends import OutriderBackend
    from outrider_lab.bench.conversing import Conversing
    from outrider_lab.data import workloads

    ids = [] if talk else workloads.token_ids(llm.tokenizer, questions)
    found: dict[int, dict[str, Any]] = {}
    groups = [-(-len(questions) // n) if rate is None else 1 for n in sweep]
    with working("bench", sum(1 + rounds * count for count in groups) * (len(settings) + len(peers))) as tick:
        for n in sweep:
            group = n if rate is None else len(questions)
            own = [OutriderBackend(name, llm, params, speculation, n, rate) for name, speculation in settings.items()]
            backends: list[BenchBackend] = [*own, *peers]
            if talk:
                talks = [Conversing(backend, llm.tokenizer, llm.engine.max_seq_len) for backend in backends]
                records = runner.run_interleaved(talks, questions, group=group, rounds=rounds, tick=tick)
            else:
                records = runner.run_interleaved(backends, ids, group=group, rounds=rounds, tick=tick)
            found[n] = runner.results(records, questions, group, settings)
    return found, backends


def _peers(
    names: list[str], llm: LLM, python: str | None, params: SamplingParams, concurrency: int
) -> list[BenchBackend]:
    import sys

    from outrider.native.processor import num_threads
    from outrider.weights.hub.catalog import resolve
    from outrider_lab.bench.backends import EndpointBackend, PeerBackend, peer_file
    from outrider_lab.bench.process import PeerProcess

    found: list[BenchBackend] = []
    for name in names:
        if name.startswith(("http://", "https://")):
            found.append(EndpointBackend(name, llm.tokenizer, params.max_tokens, concurrency, llm.config.model))
            continue
        kind, _, file = name.partition(":")
        if kind not in ("transformers", "llama.cpp", "openvino"):
            raise InvalidRequestError(
                f"peer={name!r} is unknown: use llama.cpp[:FILE.gguf], transformers, openvino:FOLDER or a URL"
            )
        folder, dtype = resolve(llm.config.model), str(llm.model.dtype).removeprefix("torch.")
        backend = f"{kind}:{peer_file(file, folder, llm.config.model)}" if kind == "llama.cpp" else name
        worker = PeerProcess(backend, folder, dtype, num_threads(), python or sys.executable)
        found.append(PeerBackend(worker, params.max_tokens, None if file else name))
    return found
