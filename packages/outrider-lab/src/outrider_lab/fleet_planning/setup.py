"""Makes a workload, a fleet and a promise from options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from outrider.errors import InvalidRequestError
from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.fleet_planning.options import FleetOptions
from outrider_lab.fleet_planning.reporting.sizing import Promise
from outrider_lab.fleet_planning.simulation.run import Fleet
from outrider_lab.fleet_planning.trace import read_trace
from outrider_lab.fleet_planning.workload import Lengths, Traffic, Workload, synthesize


def workload_of(options: FleetOptions) -> Workload:
    """The requests, synthesised or from a trace. Raises InvalidRequestError for invalid options."""
    if options.trace is not None:
        return read_trace(Path(options.trace))
    traffic = Traffic(
        rate=options.request_rate or 0.0,
        input_len=Lengths.parse(options.input_len, "input_len"),
        output_len=Lengths.parse(options.output_len, "output_len"),
        duration=options.duration,
        burstiness=options.burstiness,
        turns=options.turns,
        think_s=options.think_time,
        prefix_len=options.prefix_len,
        num_prefixes=options.num_prefixes,
    )
    made = synthesize(traffic, options.seed)
    if not len(made):
        raise InvalidRequestError(
            f"request_rate={traffic.rate:g} for duration={options.duration:g} brings no request: use more of either",
            param="request_rate",
        )
    return made


def fleet_of(options: FleetOptions, machine: Machine) -> Fleet:
    """The fleet; one replica if their number is to be found. Raises InvalidRequestError for invalid options."""
    return Fleet(
        machine=machine,
        replicas=1 if options.replicas is None else options.replicas,
        routing=options.routing,
        cores=options.cores,
        draft_machines=options.draft_machines,
        network_delay=options.network_delay,
        prefill_replicas=options.prefill_replicas,
        transfer_bandwidth=options.transfer_bandwidth,
        mtbf=options.mtbf,
        restart=options.restart_time,
    )


def promise_of(options: FleetOptions) -> Promise:
    """The latency promised to 99% of requests. Raises InvalidRequestError for an invalid one."""
    return Promise(latency=options.target_p99, ttft=options.target_ttft)


def with_options(machine: Machine, options: FleetOptions) -> Machine:
    """``machine`` with the limits and the draft length in ``options``. Raises InvalidRequestError for invalid ones."""
    if options.draft == "none":
        machine = machine.without_draft()
    if machine.draft is not None:
        machine = replace(machine, draft=replace(machine.draft, spec_length=options.spec_length))
    limits = {name: getattr(options, name) for name in ("max_batch_size", "max_batched_tokens", "kv_tokens")}
    return replace(machine, **{name: value for name, value in limits.items() if value is not None})
