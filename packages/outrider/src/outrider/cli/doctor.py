"""``outrider doctor``: this machine's capabilities, Outrider's choices, and a test of batch invariance."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.shared import options as o
from outrider.config import DTypeName

if TYPE_CHECKING:
    from outrider.models.base import LoadedModel


def doctor(
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Also forecast memory and speed of this model, then load and measure it."),
    ] = None,
    load: Annotated[bool, typer.Option(help="Load the model behind the forecast.")] = True,
    draft_model: o.DraftModel = None,
    device: o.Device = o.ENGINE.device,
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Show this machine's capabilities and Outrider's choices, and test that results do not depend on the batch.

    Exits with 1 if they do.
    """
    facts = examine(device, threads)
    if model is not None:
        facts["check"] = _forecast(model, echo=not as_json)
    if model is not None and load:
        llm = o.load(model, draft_model=draft_model or None, device=device, threads=threads)
        plan = llm.memory_plan
        facts["implementation"] = llm.model.implementation
        facts["memory_plan"] = asdict(plan)
        facts["run_times"] = run_times(llm.model, facts)
        facts["threads_compared"] = with_least_times(llm.model, facts["threads_compared"])
        facts["forecast_error"] = _error(facts)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _show(facts)
        _show_threads(facts["threads_compared"])
        if model is not None and load:
            typer.echo(f"\nMemory for {model}, with the defaults of the engine:")
            typer.echo("\n".join(f"  {line}" for line in plan.lines()))
            _show_run_times(facts["run_times"])
            if facts["forecast_error"] is not None:
                typer.echo(f"\nA step of a row took {facts['forecast_error']:+.0%} of its forecast.")
    if not all(finding["chains"] and finding["trees"] for finding in facts["batch_invariance"]):
        raise typer.Exit(1)


def _forecast(model: str, *, echo: bool) -> dict[str, Any]:
    """The facts of ``outrider models check``, shown at once: to load the model may take long."""
    from outrider.cli.check import check_model
    from outrider.cli.check_lines import check_lines, picture

    facts = check_model(model)
    if echo:
        typer.echo("\n".join(check_lines(facts)))
        if "forecast" in facts:
            typer.echo("\n" + "\n".join(picture(facts["forecast"])) + "\n")
    return facts


def _error(facts: dict[str, Any]) -> float | None:
    """Of the forecast, by the passes of a row that were timed now; None without either."""
    from outrider.engine.forecast import forecast_error

    forecast, runs = facts["check"].get("forecast"), [run for run in facts["run_times"] if run["rows"] == 1]
    return forecast_error(forecast, runs[0]["ms"]) if forecast is not None and runs else None


def examine(device_name: str, threads: int | None) -> dict[str, Any]:
    """The report of ``doctor``, as one JSON-ready object."""
    import os
    import platform
    import shutil

    from outrider import __version__
    from outrider.models.probe import probe
    from outrider.native.cores import usable_cores
    from outrider.native.library import library
    from outrider.native.processor import installed_version, num_threads, processor_name, set_num_threads
    from outrider.utils.system import total_memory
    from outrider.utils.user_cache import cache_root
    from outrider.weights.loader import choose_device

    if threads is not None:
        set_num_threads(threads)
    device = choose_device(device_name)
    quantised: list[DTypeName] = ["q8_0", "q4_0", "q4_1"] if device == "cpu" and library() is not None else []
    kinds: list[DTypeName] = ["bfloat16", "float32", *quantised]
    root = cache_root()
    existing = next(p for p in (root, *root.parents) if p.exists())
    return {
        "outrider": __version__,
        "python": platform.python_version(),
        "torch": installed_version("torch"),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": num_threads(),
        "memory_gb": round(total_memory() / 1e9, 1),
        "gpu": None if device == "cpu" else _gpu_name(),
        "device": str(device),
        **native_facts(num_threads()),
        "threads_compared": compare_threads(max(num_threads(), usable_cores())),
        "model_cache": str(root),
        "disk_free_gb": round(shutil.disk_usage(existing).free / 1e9, 1),
        "batch_invariance": [asdict(probe(kind, device)) for kind in kinds],
    }


def _gpu_name() -> str | None:
    from outrider.extensions import extension

    name: str | None = extension("backends", "torch").gpu_name()
    return name


def native_facts(threads: int) -> dict[str, Any]:
    """The native library: its origin, its instruction sets, and their rates on this machine."""
    from outrider.native.context import NativeContext
    from outrider.native.library import available_isas, failed_isas, loaded
    from outrider.native.measure import measure_rates

    found = loaded()
    if found is None:
        return {"native_library": None}
    rates = measure_rates(NativeContext(threads))
    return {
        "native_library": found.origin,
        "instruction_set": found.isa,
        "instruction_sets": available_isas(found.library),
        "failed_self_check": failed_isas(found.library),
        **asdict(rates),
    }


def compare_threads(most: int) -> list[dict[str, Any]]:
    """The rates of memory and arithmetic with 1 to ``most`` threads; empty without the native library."""
    from outrider.native.context import MOST_THREADS, NativeContext
    from outrider.native.library import loaded
    from outrider.native.measure import measure_rates, thread_counts

    if loaded() is None:
        return []
    counts = thread_counts(min(most, MOST_THREADS))
    return [{"threads": count, **asdict(measure_rates(NativeContext(count)))} for count in counts]


def with_least_times(model: LoadedModel, compared: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``compared`` with the least time of a forward pass of ``model`` with each number of threads."""
    from outrider.models.run_time import least_times
    from outrider.native.measure import MachineRates

    rates = {row["threads"]: MachineRates(row["read_gb_s"], row["int8_gmac_s"]) for row in compared}
    return [row | asdict(least) for row, least in zip(compared, least_times(model, rates), strict=True)]


def _show_threads(compared: list[dict[str, Any]]) -> None:
    if not compared:
        return
    with_model = "one_row_ms" in compared[0]
    typer.echo(
        "\nThreads: memory, arithmetic, time until all have met" + (", least time of a pass" if with_model else "")
    )
    for row in compared:
        line = (
            f"  {row['threads']:3} {row['read_gb_s']:8.1f} GB/s {row['int8_gmac_s']:9.1f} G/s {row['sync_us']:8.2f} us"
        )
        if with_model:
            line += f"   one row {row['one_row_ms']:.2f} ms, a prompt of 256 {row['prompt_ms']:.0f} ms"
        typer.echo(line)


def run_times(model: LoadedModel, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Times of forward passes of 1, 4 and 16 rows, with both limits; empty without the native library."""
    from outrider.models.run_time import time_runs
    from outrider.native.measure import MachineRates

    if facts["native_library"] is None or model.implementation != "native":
        return []
    return [asdict(run) for run in time_runs(model, MachineRates(facts["read_gb_s"], facts["int8_gmac_s"]))]


def _show_run_times(runs: list[dict[str, Any]]) -> None:
    if runs:
        typer.echo("\nMilliseconds of a forward pass, and the least that memory and arithmetic allow:")
    for run in runs:
        limits = f"memory {run['memory_limit_ms']:.2f}, arithmetic {run['arithmetic_limit_ms']:.2f}"
        typer.echo(f"  {run['rows']:3} rows {run['ms']:8.2f}   ({limits})")


def _show(facts: dict[str, Any]) -> None:
    yes = {True: "yes", False: "no", None: "none"}
    for key, value in facts.items():
        if key not in ("batch_invariance", "memory_plan", "run_times", "threads_compared", "check", "forecast_error"):
            value = ", ".join(value) or None if isinstance(value, list) else value
            shown = yes[value] if value is None or isinstance(value, bool) else value
            typer.echo(f"{key.replace('_', ' '):18} {shown}")
    typer.echo("\nSame bits whatever else is in the run?")
    for finding in facts["batch_invariance"]:
        chains, trees = yes[finding["chains"]], yes[finding["trees"]]
        note = "" if finding["chains"] and finding["trees"] else f"   (differs by {finding['largest_difference']:.1e})"
        typer.echo(f"  {finding['dtype']:10} chains {chains:4} trees {trees:4}{note}")
