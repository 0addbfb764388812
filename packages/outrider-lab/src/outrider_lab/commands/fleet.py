"""``outrider plan --fleet``: the number of replicas and their latencies, by simulation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from outrider.errors import InvalidRequestError
from outrider_lab.fleet_planning.options import FleetOptions

if TYPE_CHECKING:
    from outrider_lab.fleet_planning.costs.machine import Machine
    from outrider_lab.fleet_planning.reporting.sizing import Sizing

Measure = Callable[[str | None], "Machine"]
"""Measures this machine, with a draft source or without."""


def plan_fleet(given: dict[str, Any], known: Machine | None, measure: Measure, *, as_json: bool) -> None:
    """Simulate a fleet and print the results. ``known``: the estimated machine of ``--what-if``, if given."""
    from outrider.utils.working import working
    from outrider_lab.fleet_planning.reporting.report import summarize, table
    from outrider_lab.fleet_planning.reporting.sizing import replicas_needed
    from outrider_lab.fleet_planning.setup import fleet_of, promise_of, workload_of
    from outrider_lab.fleet_planning.simulation.simulate import simulate

    options = FleetOptions(**given)
    if options.plot is not None:
        from outrider_lab.figures import page

        page.pyplot()  # raises, if missing, before anything is measured
    workload, promise = workload_of(options), promise_of(options)
    machine = _machine(options, known, measure)
    fleet = fleet_of(options, machine)
    with working("simulating") as tick:
        if options.replicas is not None:
            tick.expect(len(workload))
            run = simulate(fleet, workload, seed=options.seed, tick=tick)
            sizing = None
        else:
            sizing = replicas_needed(fleet, workload, promise, seed=options.seed, tick=tick)
            run = sizing.run
    found = summarize(run)
    if options.plot is not None:
        from outrider_lab.fleet_planning.reporting import plots

        _write(options.plot, lambda path: plots.draw(path, run, sizing, promise))
    if as_json:
        tried = [] if sizing is None else [summary.as_dict() for summary in sizing.tried.values()]
        typer.echo(json.dumps(found.as_dict() | {"machine": machine.as_dict(), "tried": tried}))
        return
    lines = [*(_sized(sizing) if sizing else []), *table(found, machine.name or "the machine")]
    typer.echo("\n".join([*lines, _ingress(machine, options)]))


def _ingress(machine: Machine, options: FleetOptions) -> str:
    """The assumed cost of the ingress, and its origin."""
    if not machine.ingress_per_request:
        return "the ingress is taken to cost nothing: measure a model here, or give --machine a measured one"
    where = "measured now" if options.machine is None else f"from {options.machine}"
    request, token = 1e3 * machine.ingress_per_request, 1e3 * machine.ingress_per_token
    return f"the ingress works {request:.2f}ms for a request and {token:.3f}ms for a token ({where})"


def _machine(options: FleetOptions, known: Machine | None, measure: Measure) -> Machine:
    """The replica's machine: estimated, read from a file, or measured; with the limits in ``options``."""
    from outrider_lab.fleet_planning.costs.machine import read_machine
    from outrider_lab.fleet_planning.setup import with_options

    if known is not None and options.machine is not None:
        raise InvalidRequestError(f"machine={options.machine!r} and --what-if: give one of them", param="machine")
    source = None if options.draft == "none" else options.draft
    machine = known
    if options.machine is not None:
        machine = read_machine(Path(options.machine))
    if machine is None:
        machine = measure(source)
    elif source is not None and (machine.draft is None or machine.draft.name != source):
        has = "none" if machine.draft is None else machine.draft.name
        raise InvalidRequestError(
            f"draft={source!r} was not measured on this machine, which has {has}: leave it out, or measure again",
            param="draft",
        )
    machine = with_options(machine, options)
    if options.save_machine is not None:
        text = json.dumps(machine.as_dict(), indent=1) + "\n"
        _write(options.save_machine, lambda path: path.write_text(text, encoding="utf-8"))
    return machine


def _write(name: str, write: Callable[[Path], object]) -> None:
    try:
        write(Path(name))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequestError(f"{name!r} cannot be written: {reason}") from None


def _sized(sizing: Sizing) -> list[str]:
    lines = [f"{sizing.replicas} replicas are needed", ""]
    for count, found in sizing.tried.items():
        late = "" if found.keeps_up else "  the queue grows"
        lines.append(
            f"{count:6} replicas  p99 to the first token {found.ttft_p99:8.3f}s, to the last {found.latency_p99:8.3f}s,"
            f" busy {found.utilization:4.0%}{late}"
        )
    return [*lines, ""]
