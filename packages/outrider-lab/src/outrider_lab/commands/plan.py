"""``outrider plan``: recommends a source and K for a model, prompts and a machine."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
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
    from outrider_lab.roofline import ModelSize
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


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """Model, hardware and text of an estimate, which measures nothing."""

    target_params: str | None = None
    """Size of the model, as in 70B."""
    draft_params: str | None = None
    """Size of the draft model, as in 1B."""
    alpha: float | None = None
    """Acceptance rate α, 0 to 1."""
    text: str = "mixed"
    """repetitive (edits, summaries, code, RAG), mixed, or novel (chat): the usual α of each."""
    hardware: str = "H100"
    """H100, A100, RTX 4090, CPU and others."""
    devices: int | None = None
    """Number of devices."""
    bits: int = 16
    """Bits per weight."""
    context: int = 512
    """Tokens of context."""

    def sizes(self, example: str) -> tuple[ModelSize, ModelSize | None]:
        """Sizes of the model and of the draft model. Raises InvalidRequestError (``example``) without the first."""
        from outrider_lab.roofline import ModelSize

        if self.target_params is None:
            raise InvalidRequestError(example)
        draft = None if self.draft_params is None else ModelSize.parse(self.draft_params, self.bits)
        return ModelSize.parse(self.target_params, self.bits), draft


flags.describe(
    EstimateOptions,
    flags.FlagTable(
        headings={_ESTIMATE: " ".join(field.name for field in fields(EstimateOptions))},
        rare="text devices bits context",
        shown={"draft_params": "a free source", "alpha": "by --text", "devices": "as many as hold the weights"},
    ),
)

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


@options_from(EstimateOptions, FleetOptions)
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
    described = EstimateOptions(**o.own(EstimateOptions, given))
    if not what_if and {"target_params", "draft_params", "alpha", "devices"} & given.keys():
        raise InvalidRequestError("target_params, draft_params, alpha and devices describe an estimate: add --what-if")
    if fleet:
        known = _estimated(described) if what_if else None
        plan_fleet(
            o.own(FleetOptions, given), known,
            lambda source: _measured(model, source, loading, prompts, count, params, given), as_json=as_json,
        )  # fmt: skip
        return
    refuse_without_fleet(given)
    if what_if:
        from outrider_lab.what_if import estimate

        found = estimate(_scenario(described, batch))
        typer.echo(json.dumps(found.as_dict(), ensure_ascii=False) if as_json else found.text())
        return
    made, settings = _recommended(model, loading, prompts, count, params, batch=batch, verify=not no_check)
    if write is not None:
        write_text(write, json.dumps(settings, indent=1) + "\n")
    facts = made.as_dict() | {"settings": settings}
    typer.echo(json.dumps(facts, ensure_ascii=False) if as_json else _shown(made, batch))
    if not made.complete:
        raise typer.Exit(130)


def _recommended(
    model: str,
    loading: dict[str, Any],
    prompts: str,
    count: int | None,
    params: SamplingParams,
    *,
    batch: int,
    verify: bool,
) -> tuple[SpeculationPlan, dict[str, Any]]:
    """The plan for this machine, and the options that it recommends."""
    from outrider.utils.working import working
    from outrider_lab.data import workloads
    from outrider_lab.plan import make_plan, with_seed

    questions = workloads.load(prompts, count=count)
    with working("plan") as tick:
        drafts = o.draft_to_load(model, loading["draft_model"] or (), ())
        llm = o.load(model, **loading, draft=drafts, prefix_reuse=False)
        alike = sorted(questions, key=lambda question: question.category)
        ids = workloads.token_ids(llm.tokenizer, alike)
        made = make_plan(llm, ids, with_seed(params), batch=batch, verify=verify, tick=tick, expect=tick.expect)
    return made, made.settings(llm.config)


def _estimated(described: EstimateOptions) -> Machine:
    """A replica on hardware that cannot be measured here."""
    from outrider_lab.fleet_planning.costs.machine import from_roofline
    from outrider_lab.roofline import find_hardware

    target, draft = described.sizes("--fleet --what-if needs --target-params, as in --target-params 8B")
    hardware = find_hardware(described.hardware)
    return from_roofline(target, hardware, alpha=described.alpha, draft=draft, devices=described.devices)


def _measured(
    model: str,
    source: str | None,
    loading: dict[str, Any],
    prompts: str,
    count: int | None,
    params: SamplingParams,
    given: Given,
) -> Machine:
    """This machine, with the limits that it would serve with."""
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


def _scenario(described: EstimateOptions, batch: int) -> Scenario:
    from outrider_lab.priors import default_alpha
    from outrider_lab.roofline import find_hardware
    from outrider_lab.what_if import Scenario

    target, draft = described.sizes("--what-if needs --target-params, as in --target-params 70B")
    usual, source = default_alpha(described.text, target, draft)  # type: ignore[arg-type]  # checked there
    return Scenario(
        target=target,
        hardware=find_hardware(described.hardware),
        alpha=usual if described.alpha is None else described.alpha,
        alpha_source=source if described.alpha is None else "as given",
        draft=draft,
        batch=batch,
        context=described.context,
        devices=described.devices,
    )


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
