"""``outrider doctor``: what this machine offers, what will be used, and whether the promises hold here."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from outrider.cli import options as o


def doctor(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Also load this model and show how memory would be divided.")
    ] = None,
    draft_model: o.DraftModel = None,
    device: o.Device = o.ENGINE.device,
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Show what this machine offers and what Outrider will use, and test that results do not depend on the batch.

    Exits with 1 if the default dtype cannot keep that promise here.
    """
    facts = examine(device, threads)
    if model is not None:
        plan = o.load(model, draft_model=draft_model or None, device=device, threads=threads).memory_plan
        facts["memory_plan"] = asdict(plan)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _show(facts)
        if model is not None:
            typer.echo(f"\nMemory for {model}, with the defaults of the engine:")
            typer.echo("\n".join(f"  {line}" for line in plan.lines()))
    kept = next(f for f in facts["batch_invariance"] if f["dtype"] == facts["dtype"])
    if not kept["chains"]:
        raise typer.Exit(1)


def examine(device_name: str, threads: int | None) -> dict[str, Any]:
    """Everything ``doctor`` reports, as one JSON-ready object."""
    import os
    import platform
    import shutil

    import torch

    from outrider import __version__
    from outrider.checkpoints.loader import choose_device, choose_dtype
    from outrider.kernels.linear.linear import has_packed_kernels
    from outrider.kernels.native import native_library
    from outrider.kernels.processor import has_bf16_instructions, has_bf16_tiles, processor_name
    from outrider.models.probe import probe
    from outrider.utils.user_cache import cache_root

    if threads is not None:
        torch.set_num_threads(threads)
    device = choose_device(device_name)
    chosen = choose_dtype("auto", device)
    dtype = str(chosen).removeprefix("torch.")
    kinds = ["bfloat16", "float32", *(["int8"] if device.type == "cpu" else [])]
    root = cache_root()
    existing = next(p for p in (root, *root.parents) if p.exists())
    return {
        "outrider": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "device": str(device),
        "dtype": dtype,
        "bf16_instructions": has_bf16_instructions(),
        "vnni": bool(torch.cpu._is_vnni_supported()),
        "bf16_tiles": has_bf16_tiles(),
        "linear_layers": _linear_layers(packed=device.type == "cpu" and has_packed_kernels(chosen)),
        "compiled_kernels": native_library() is not None,
        "model_cache": str(root),
        "disk_free_gb": round(shutil.disk_usage(existing).free / 1e9, 1),
        "batch_invariance": [asdict(probe(kind, device)) for kind in kinds],
    }


def _linear_layers(*, packed: bool) -> str:
    from outrider.kernels.native import brgemm_functions

    if not packed:
        return "plain (torch)"
    return "packed (oneDNN)" if brgemm_functions() is None else "blocks (oneDNN)"


def _show(facts: dict[str, Any]) -> None:
    yes = {True: "yes", False: "no", None: "none"}
    for key, value in facts.items():
        if key not in ("batch_invariance", "memory_plan"):
            shown = yes[value] if value is None or isinstance(value, bool) else value
            typer.echo(f"{key.replace('_', ' '):18} {shown}")
    typer.echo("\nSame bits whatever else is in the run?")
    for finding in facts["batch_invariance"]:
        chains, trees = yes[finding["chains"]], yes[finding["trees"]]
        note = "" if finding["chains"] and finding["trees"] else f"   (differs by {finding['largest_difference']:.1e})"
        default = "   <- default" if finding["dtype"] == facts["dtype"] else ""
        typer.echo(f"  {finding['dtype']:10} chains {chains:4} trees {trees:4}{note}{default}")
    if not facts["bf16_instructions"] and facts["device"] == "cpu":
        typer.echo("\nThis processor does not multiply bfloat16 in hardware, so float32 is used.")
