"""``outrider pick``: which draft source for a workload described in flags; no model is loaded."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from outrider.cli import options as o

_BILLIONS = "in billions of parameters"


def pick(
    target: Annotated[float, typer.Option(help=f"Size of the model, {_BILLIONS}.")],
    hardware: Annotated[
        str, typer.Option(help="H100, H200, B200, A100, L40S, L4, RTX 4090, RTX 3090, T4, M2 Max, CPU.")
    ] = "H100",
    draft_size: Annotated[
        float | None, typer.Option(help=f"A smaller model of the same vocabulary, {_BILLIONS}.")
    ] = None,
    weight_bits: Annotated[int, typer.Option(help="Bits per weight.")] = 16,
    can_train: Annotated[bool, typer.Option("--can-train", help="Heads can be trained for the target.")] = False,
    text: Annotated[
        str, typer.Option(help="repetitive (edits, summaries, code, RAG), mixed, or novel (stories, chat).")
    ] = "mixed",
    temperature: o.Temperature = 0.0,
    batch: Annotated[int, typer.Option(help="Requests that run at once.")] = 1,
    context: Annotated[int, typer.Option(help="Tokens of context, typically.")] = 512,
    output_tokens: Annotated[int, typer.Option(help="Tokens of an answer, typically.")] = 256,
    as_json: o.AsJson = False,
) -> None:
    """Recommend a draft source, K, draft temperature and tree, with the reasons.

    Rules from the literature and a roofline model of the machine: a first guess where nothing can be measured yet.
    `outrider plan` measures. Example: outrider pick --target 70 --draft-size 1 --hardware H100 --text novel
    """
    from outrider.analysis.picker import recommend
    from outrider.analysis.priors import Workload, machine
    from outrider.analysis.roofline import Size

    load = Workload(
        target=Size(target * 1e9, weight_bits),
        hardware=machine(hardware),
        draft=None if draft_size is None else Size(draft_size * 1e9, weight_bits),
        can_train=can_train,
        text=text,  # type: ignore[arg-type]  # checked there
        temperature=temperature,
        batch=batch,
        context=context,
        output_tokens=output_tokens,
    )
    advice = recommend(load)
    if as_json:
        typer.echo(json.dumps(advice.as_dict(), ensure_ascii=False))
        return
    _show(advice)


def _show(advice: Any) -> None:
    if advice.source == "none":
        typer.echo("Do not speculate (--draft none).")
    else:
        extra = "" if advice.draft_temperature is None else f" --draft-temperature {advice.draft_temperature:g}"
        typer.echo(f"--draft {advice.source} --spec-length {advice.spec_length}{extra}   about {advice.speedup:.1f}x")
    for reason in advice.reasons:
        typer.echo(f"  · {reason}")
    typer.echo("\nAll candidates, at their best K:")
    for choice in advice.ranking:
        even = "never" if choice.break_even is None else f"{choice.break_even:.2f}"
        typer.echo(f"  {choice.candidate.source:8} K={choice.k:<3} {choice.speedup:5.2f}x   pays from α = {even}")
