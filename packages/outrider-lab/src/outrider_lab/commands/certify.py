"""``outrider certify``: tests on this machine that drafts do not change outputs. A report, and an exit code."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.shared import options as o
from outrider.cli.shared.generated import Given, options_from
from outrider.config import EngineConfig
from outrider.errors import ConfigError, InvalidRequestError
from outrider.utils.whole_files import check_place, write_text

if TYPE_CHECKING:
    from outrider_lab.certify.report import Certificate
    from outrider_lab.certify.session import Coverage


Tools = Annotated[int | None, typer.Option(min=1, help="Test tool calls of --endpoint, so many.", show_default="none")]
AtOnce = Annotated[int, typer.Option(min=1, max=1024, help="Requests of --tools at once.", hidden=True)]
Notation = Annotated[
    str | None,
    typer.Option(help="With --tools: the notation of calls that a grammar forces in some requests.", hidden=True),
]


@options_from(EngineConfig, only=("draft_model", "heads", "datastore", "kv_cache", *o.LOADING))
def certify(
    model: o.Model = o.DEFAULT_MODEL,
    draft: Annotated[
        list[str] | None, typer.Option(help="Draft source to test; may be repeated.", show_default="all")
    ] = None,
    verifier: Annotated[
        list[str] | None, typer.Option(help="Verifier to test; may be repeated.", show_default="all")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="At most a minute with a small model.")] = False,
    full: Annotated[bool, typer.Option("--full", help="More prompts and samples.")] = False,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Time it may take on an idle machine, about.", show_default="10 with --full, 0.7 with --quick"
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for notes too, as for rounding.")] = False,
    prompts: Annotated[str, typer.Option(help="mix, stories, or a file of prompts (see outrider bench).")] = "mix",
    endpoint: Annotated[
        str | None, typer.Option(help="URL of an OpenAI-compatible server with speculation, instead of a model.")
    ] = None,
    baseline: Annotated[str | None, typer.Option(help="URL of the same server without speculation.")] = None,
    tools: Tools = None,
    at_once: AtOnce = 32,
    notation: Notation = None,
    report: Annotated[Path | None, typer.Option(help="Also write the report here, as Markdown.")] = None,
    *,
    given: Given,
    as_json: o.AsJson = False,
) -> None:
    """Test that drafts do not change what the model says: exit code 0 if so, 1 if not; 0 with notes unless --strict.

    The checks: frequencies of enumerable sequences; identity of greedy and seeded outputs over prompts, sources and
    batches; whether a row's arithmetic depends on the other rows of its batch, and from which layer on; and the
    target's distribution, for verifiers that keep only that. Each difference is called rounding or a bug.

    Example: outrider certify -m tinyllama-1.1b-chat --draft-model stories15m

    --endpoint and --baseline compare two OpenAI-compatible servers.
    """
    if quick and full:
        raise InvalidRequestError("quick and full exclude each other: use one of them")
    check_place(report)
    served = None if model == o.DEFAULT_MODEL else model
    if tools is not None:
        found = _tools(endpoint, baseline, served, draft, tools, at_once, notation)
    elif (endpoint is None) != (baseline is None):
        raise ConfigError("endpoint and baseline belong together: give the URLs of both servers")
    elif endpoint is not None and baseline is not None:
        if max_minutes is not None:
            raise ConfigError("max_minutes is for models: leave it out, or use --quick, to compare servers sooner")
        found = _servers(endpoint, baseline, prompts, quick, full, served)
    else:
        found = _model(model, o.engine(given), draft, verifier, prompts, _coverage(quick, full, max_minutes))
    if report is not None:
        write_text(report, found.markdown())
    typer.echo(found.as_json() if as_json else "\n".join(found.lines()))
    code = 130 if not found.complete else int(not found.passed or (strict and bool(found.notes)))
    if code:
        raise typer.Exit(code)


def _coverage(quick: bool, full: bool, max_minutes: float | None) -> Coverage:
    from outrider_lab.certify import session

    coverage = session.QUICK if quick else session.FULL if full else session.NORMAL
    return coverage if max_minutes is None else replace(coverage, minutes=max_minutes)


def _model(
    model: str,
    options: dict[str, Any],
    draft: list[str] | None,
    verifier: list[str] | None,
    prompts: str,
    coverage: Coverage,
) -> Certificate:
    from outrider.config import SOURCES, VERIFIERS, source_record
    from outrider.utils.suggest import unknown
    from outrider.utils.working import working
    from outrider_lab.certify import session
    from outrider_lab.data import workloads

    for what, asked, known in (("draft", draft, SOURCES), ("verifier", verifier, VERIFIERS)):
        for name in asked or ():
            if name not in known:
                raise ConfigError(unknown(what, name, known))
    for name in draft or ():
        if source_record(name).min_draft_models and "draft_model" not in options:
            raise ConfigError(f"draft={name!r} needs a draft model: name one with --draft-model")
    questions = workloads.load(prompts, count=coverage.prompts)
    with working("certify") as tick:
        loaded = o.draft_to_load(model, options.get("draft_model", ()), draft)
        llm = o.load(model, **options, draft=loaded, spec_length=4)
        return session.certify(
            llm, questions, coverage, sources=draft, verifiers=verifier, tick=tick, expect=tick.expect
        )


def _servers(endpoint: str, baseline: str, prompts: str, quick: bool, full: bool, model: str | None) -> Certificate:
    from outrider.utils.working import working
    from outrider_lab.data import workloads
    from outrider_lab.referee import endpoints

    count = 4 if quick else 48 if full else 12
    questions = workloads.load(prompts, count=count)
    with working("certify", total=None) as tick:
        return endpoints.compare(endpoint, baseline, questions, model=model, tokens=48 if quick else 128, tick=tick)


def _tools(
    endpoint: str | None,
    baseline: str | None,
    model: str | None,
    draft: list[str] | None,
    count: int,
    at_once: int,
    notation: str | None,
) -> Certificate:
    from outrider.utils.suggest import unknown
    from outrider.utils.working import working
    from outrider_lab.certify.report import Certificate, Check
    from outrider_lab.certify.tool_calls.notations import NOTATIONS
    from outrider_lab.certify.tool_calls.suite import ToolSuite, check_tool_calls

    if endpoint is None:
        raise ConfigError("tools are of a server: name one with --endpoint")
    if notation is not None and notation not in NOTATIONS:
        raise ConfigError(unknown("notation", notation, NOTATIONS))
    suite = ToolSuite(count, at_once, sources=draft or (), notation=notation)
    checks: list[Check] = []
    complete = False
    with suppress(KeyboardInterrupt), working("certify", total=None) as tick:
        checks.extend(check_tool_calls(endpoint, baseline, suite, model=model, tick=tick, expect=tick.expect))
        complete = True
    subject = {"endpoint": endpoint, "baseline": baseline, "model": model, "requests": count, "at once": at_once}
    return Certificate(subject, checks, complete)
