"""``outrider pick``: recommends a draft source for a workload described in flags; no model is loaded."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from outrider.cli.shared import options as o


def pick(
    target_params: Annotated[str, typer.Option(help="Size of the model, as in 70B.")],
    hardware: Annotated[
        str, typer.Option(help="H100, H200, B200, A100, L40S, L4, RTX 4090, RTX 3090, T4, M2 Max, CPU.")
    ] = "H100",
    draft_params: Annotated[
        str | None, typer.Option(help="Size of a smaller model of the same vocabulary, as in 1B.", show_default="none")
    ] = None,
    bits: Annotated[int, typer.Option(help="Bits per weight.")] = 16,
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

    Rules from the literature and a roofline model of the hardware: a first guess without measurements.
    `outrider plan` measures. Example: outrider pick --target-params 70B --draft-params 1B --text novel
    """
    from outrider_lab.picker import recommend
    from outrider_lab.priors import DescribedWorkload
    from outrider_lab.roofline import ModelSize, find_hardware

    load = DescribedWorkload(
        target=ModelSize.parse(target_params, bits),
        hardware=find_hardware(hardware),
        draft=None if draft_params is None else ModelSize.parse(draft_params, bits),
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
    for ranked in advice.ranking:
        even = "never" if ranked.break_even_alpha is None else f"{ranked.break_even_alpha:.2f}"
        typer.echo(f"  {ranked.candidate.source:8} K={ranked.k:<3} {ranked.speedup:5.2f}x   pays from α = {even}")
