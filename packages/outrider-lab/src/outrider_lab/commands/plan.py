"""``outrider plan``: which source and K for my model, my prompts, my machine?"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.shared import flags
from outrider.cli.shared import options as o
from outrider.cli.shared.generated import Given, options_from
from outrider.config import SamplingParams
from outrider.errors import InvalidRequestError
from outrider.utils.whole_files import check_place, write_text
from outrider_lab.commands.fleet import plan_fleet
from outrider_lab.fleet_planning.options import FleetOptions, refuse_without_fleet

if TYPE_CHECKING:
    from outrider_lab.fleet_planning.costs.machine import Machine
    from outrider_lab.plan import SpeculationPlan
    from outrider_lab.what_if import Scenario

_ESTIMATE = "Without a model"

NoCheck = Annotated[bool, typer.Option("--no-check", help="Do not test the predictions on other prompts.", hidden=True)]
WhatIf = Annotated[
    bool,
    typer.Option("--what-if", help="Estimate from these options; no model is loaded.", rich_help_panel=_ESTIMATE),
]
FleetFlag = Annotated[
    bool,
    typer.Option("--fleet", help="Simulate many replicas instead (see --help-all)."),
]
TargetParams = Annotated[str | None, typer.Option(help="Size of the model, as in 70B.", rich_help_panel=_ESTIMATE)]
DraftParams = Annotated[
    str | None,
    typer.Option(help="Size of the draft model, as in 1B.", show_default="a free source", rich_help_panel=_ESTIMATE),
]
Alpha = Annotated[
    float | None,
    typer.Option(help="Acceptance rate α, 0 to 1.", show_default="by --text", rich_help_panel=_ESTIMATE),
]
Text = Annotated[
    str,
    typer.Option(
        help="repetitive (edits, summaries, code, RAG), mixed, or novel (chat): the usual α of each.",
        rich_help_panel=_ESTIMATE,
        hidden=True,
    ),
]
Hardware = Annotated[str, typer.Option(help="H100, A100, RTX 4090, CPU and others.", rich_help_panel=_ESTIMATE)]
Devices = Annotated[
    int | None,
    typer.Option(
        help="How many of them.", show_default="as many as hold the weights", rich_help_panel=_ESTIMATE, hidden=True
    ),
]
Bits = Annotated[int, typer.Option(help="Bits per weight.", rich_help_panel=_ESTIMATE, hidden=True)]
Context = Annotated[int, typer.Option(help="Tokens of context.", rich_help_panel=_ESTIMATE, hidden=True)]


_FLEET = " ".join(field.name for field in fields(FleetOptions))
flags.describe(
    FleetOptions,
    flags.FlagTable(
        headings={"A fleet": _FLEET},
        rare=_FLEET,
        shown=dict.fromkeys(("draft", "max_batch_size", "max_batched_tokens", "kv_tokens"), "the machine's"),
        help={"draft": "A draft source to measure and to use; none: without."},
        choices={
            "draft": flags.draft_names,
            "routing": lambda: ["prefix", "session", "least_load", "round_robin", "random"],
        },
    ),
)


@options_from(FleetOptions)
def plan(
    model: o.Model = o.DEFAULT_MODEL,
    draft_model: o.DraftModel = None,
    prompts: Annotated[str, typer.Option(help="mix, stories, or a file of prompts (see outrider bench).")] = "mix",
    count: Annotated[int | None, typer.Option(help="Prompts to use.", show_default="all")] = None,
    max_tokens: o.MaxTokens = 64,
    temperature: o.Temperature = 0.0,
    batch: Annotated[int, typer.Option(help="Requests that will run at once.")] = 1,
    no_check: NoCheck = False,
    write: Annotated[Path | None, typer.Option(help="Write the recommended options here, as JSON.")] = None,
    fleet: FleetFlag = False,
    what_if: WhatIf = False,
    target_params: TargetParams = None,
    draft_params: DraftParams = None,
    alpha: Alpha = None,
    text: Text = "mixed",
    hardware: Hardware = "H100",
    devices: Devices = None,
    bits: Bits = 16,
    context: Context = 512,
    dtype: o.DType = o.ENGINE.dtype,
    draft_dtype: o.DraftDType = o.ENGINE.dtype,
    device: o.Device = o.ENGINE.device,
    threads: o.Threads = None,
    *,
    given: Given,
    as_json: o.AsJson = False,
) -> None:
    """Measure costs and acceptance, predict the speed of each source, K and batch, and recommend one.

    Half of the prompts are measured; the best predictions are tested on the other half.

    Example: outrider plan -m tinyllama-1.1b-chat --draft-model stories15m

    Without a model: outrider plan --what-if --target-params 70B

    A fleet: outrider plan --fleet --request-rate 20 --target-p99 5
    """
    check_place(write)
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    loading = {"draft_model": draft_model, "dtype": dtype, "draft_dtype": draft_dtype, "device": device,
               "threads": threads}  # fmt: skip
    if fleet:
        known = _estimated(target_params, draft_params, alpha, hardware, devices, bits) if what_if else None
        if not what_if:
            _refuse_estimate(target_params, draft_params, alpha, devices)
        plan_fleet(
            dict(given), known, lambda source: _measured(model, source, loading, prompts, count, params, given),
            as_json=as_json,
        )  # fmt: skip
        return
    refuse_without_fleet(given)
    if what_if:
        scenario = _scenario(target_params, draft_params, alpha, text, hardware, devices, bits, batch, context)
        typer.echo(_estimate(scenario, as_json))
        return
    _refuse_estimate(target_params, draft_params, alpha, devices)
    from outrider.utils.working import working
    from outrider_lab.data import workloads
    from outrider_lab.plan import make_plan, with_seed

    questions = workloads.load(prompts, count=count)
    with working("plan") as tick:
        llm = o.load(model, **loading, draft=o.draft_to_load(model, draft_model or (), ()), prefix_reuse=False)
        alike = sorted(questions, key=lambda question: question.category)
        ids = workloads.token_ids(llm.tokenizer, alike)
        made = make_plan(llm, ids, with_seed(params), batch=batch, verify=not no_check, tick=tick, expect=tick.expect)
    if write is not None:
        write_text(write, json.dumps(made.settings(llm.config), indent=1) + "\n")
    facts = made.as_dict() | {"settings": made.settings(llm.config)}
    typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else _shown(made, batch))
    if not made.complete:
        raise typer.Exit(130)


def _refuse_estimate(*given: object) -> None:
    if any(value is not None for value in given):
        raise InvalidRequestError("target_params, draft_params, alpha and devices describe an estimate: add --what-if")


def _estimated(
    target_params: str | None, draft_params: str | None, alpha: float | None, hardware: str, devices: int | None,
    bits: int,
) -> Machine:  # fmt: skip
    """A replica on hardware that is not at hand."""
    from outrider_lab.fleet_planning.costs.machine import from_roofline
    from outrider_lab.roofline import ModelSize, find_hardware

    if target_params is None:
        raise InvalidRequestError("--fleet --what-if needs --target-params, as in --target-params 8B")
    return from_roofline(
        ModelSize.parse(target_params, bits),
        find_hardware(hardware),
        alpha=alpha,
        draft=None if draft_params is None else ModelSize.parse(draft_params, bits),
        devices=devices,
    )


def _measured(
    model: str,
    source: str | None,
    loading: dict[str, Any],
    prompts: str,
    count: int | None,
    params: SamplingParams,
    given: Given,
) -> Machine:
    """The machine at hand, with the limits that it would serve with."""
    from outrider.utils.working import working
    from outrider_lab.data import workloads
    from outrider_lab.fleet_planning.costs.ingress import measure_ingress
    from outrider_lab.fleet_planning.costs.measure import measure_machine
    from outrider_lab.plan import with_seed

    limits = {name: given[name] for name in ("max_batch_size", "max_batched_tokens") if name in given}
    with working("measuring") as tick:
        llm = o.load(model, **loading, **limits, draft=source or "none")
        ids = workloads.token_ids(llm.tokenizer, workloads.load(prompts, count=count)) if source else []
        machine = measure_machine(
            llm, draft=source, prompts=ids, params=with_seed(params), tick=tick, expect=lambda n: tick.expect(n + 1)
        )
        ingress = measure_ingress(llm)
        tick("cost of the ingress")
        return machine if ingress is None else ingress.of(machine)


def _scenario(
    target_params: str | None,
    draft_params: str | None,
    alpha: float | None,
    text: str,
    hardware: str,
    devices: int | None,
    bits: int,
    batch: int,
    context: int,
) -> Scenario:
    from outrider_lab.priors import default_alpha
    from outrider_lab.roofline import ModelSize, find_hardware
    from outrider_lab.what_if import Scenario

    if target_params is None:
        raise InvalidRequestError("--what-if needs --target-params, as in --target-params 70B")
    target = ModelSize.parse(target_params, bits)
    draft = None if draft_params is None else ModelSize.parse(draft_params, bits)
    usual, source = default_alpha(text, target, draft)  # type: ignore[arg-type]  # checked there
    return Scenario(
        target=target,
        hardware=find_hardware(hardware),
        alpha=usual if alpha is None else alpha,
        alpha_source=source if alpha is None else "as given",
        draft=draft,
        batch=batch,
        context=context,
        devices=devices,
    )


def _estimate(scenario: Scenario, as_json: bool) -> str:
    from outrider_lab.what_if import estimate

    found = estimate(scenario)
    if as_json:
        return json.dumps(found.as_dict(), ensure_ascii=False)
    head = (
        f"K = {found.best_k}: {found.speedup:.2f}x, {found.plain_tokens_per_s * found.speedup:.0f} tokens/s a request "
        f"instead of {found.plain_tokens_per_s:.0f} (c = {found.c:.3f})"
    )
    if found.best_k == 0:
        head = f"Plain decoding, {found.plain_tokens_per_s:.0f} tokens/s a request"
    rows = [
        f"  K={k:<2} {gain:5.2f}x {rate:8.0f} tokens/s"
        for k, gain, rate in found.by_k
        if k in (1, 2, 3, 4, 5, 7, 10, 16)
    ]
    even = "" if found.break_even_alpha is None else f"Pays from α = {found.break_even_alpha:.2f} on.\n"
    lines = [head, *rows, "", even + "Notes:", *(f"  · {n}" for n in found.notes or ["none"])]
    return "\n".join([*lines, "Assumed:", *(f"  · {a}" for a in found.assumptions)])


def _shown(made: SpeculationPlan, batch: int) -> str:
    lines = []
    if made.best is None:
        lines.append("Recommended: --draft none")
    else:
        lines.append(f"Recommended: --draft {made.best.source} --spec-length {made.best.k}")
    lines += [f"  · {reason}" for reason in made.reasons]
    lines += [
        "",
        "milliseconds a forward pass, by rows: "
        + "  ".join(f"{n}: {1e3 * s:.1f}" for n, s in made.target.points.items()),
    ]
    lines += ["", f"{'source':12} {'α':>5} {'c':>6} {'drafts in':>10}   best K (speedup), by batch size"]
    for name, facts in made.sources.items():
        own = [p for p in made.predictions if p.source == name]
        best = [max((p for p in own if p.batch == b), key=lambda p: p.speedup) for b in sorted({p.batch for p in own})]
        cells = "  ".join(f"{p.batch}: K={p.k} ({p.speedup:.2f}x)" for p in best)
        rate = "   - " if facts["alpha"] is None else f"{facts['alpha']:5.2f}"
        lines.append(f"{name:12} {rate} {facts['c'] or 0:6.3f} {facts['drafting_share'] or 0:9.0%}   {cells}")
    if made.checked:
        lines += ["", "Predictions tested on prompts they were not made from:"]
        lines += [
            f"  {c.source:12} K={c.k:<3} predicted {c.predicted:.2f}x, measured {c.measured:.2f}x ({c.error:+.0%})"
            for c in made.checked
        ]
        lines.append(f"  median error {made.median_error or 0:.0%}")
    return "\n".join(lines)
