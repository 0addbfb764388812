"""``outrider figures``: the figures and tables of the literature, from theory and for the user's own models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.shared import options as o
from outrider.cli.shared.generated import Given, options_from
from outrider.config import EngineConfig
from outrider.errors import InvalidRequestError

if TYPE_CHECKING:
    from outrider_lab.figures.page import WrittenFigure


@options_from(EngineConfig, only=("draft_model", "dtype", "draft_dtype", "device", "threads"))
def figures(
    out: Annotated[Path, typer.Option(help="Folder for the files; made if it is not there.")],
    theory_only: Annotated[bool, typer.Option("--theory-only", help="Only figures that need no model.")] = False,
    model: o.Model = o.DEFAULT_MODEL,
    prompts: Annotated[str, typer.Option(help="mix, stories, or a file of prompts (see outrider bench).")] = "mix",
    tokens: Annotated[int, typer.Option(help="Target tokens to judge agreement on.")] = 10_000,
    steps: Annotated[int, typer.Option(help="Verified steps for each grade of toy draft.")] = 10_000,
    *,
    given: Given,
    as_json: o.AsJson = False,
) -> None:
    """Write every figure as PNG and SVG, and its numbers as CSV.

    From theory alone: tokens per target run, the best K, speed and operations (figures 2 to 4 and table 1 of
    Leviathan et al. 2023). With a model: a trace of a real run (figure 5), acceptance of graded drafts, theory beside
    measurement (table 4), α of unigram, bigram and draft model (table 3), lenience (table 5).

    Example: outrider figures --out figures -m tinyllama-1.1b-chat --draft-model stories15m --prompts stories
    """
    if tokens < 1 or steps < 1:
        raise InvalidRequestError(f"tokens={tokens}, steps={steps}: use at least 1 of each")
    from outrider_lab.figures import page, theory_plots

    page.pyplot()  # raises, if missing, before anything is loaded
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequestError(f"out={str(out)!r} cannot be written: {error.strerror}", param="out") from None
    if not theory_only:
        typer.echo(
            f"figures: those of theory, then toy drafts ({steps:,} steps of each), then {model}: {tokens:,} tokens of "
            f"its text at two temperatures, and every draft source beside plain decoding on {prompts}. This takes many "
            "minutes; --theory-only takes seconds, and fewer --tokens and --steps less.",
            err=True,
        )
    made = theory_plots.all_of_them(out)
    if not theory_only:
        made += _measured(out, model, given, prompts, tokens, steps)
    if as_json:
        typer.echo(json.dumps({"out": str(out), "figures": [m.as_dict() for m in made]}))
        return
    for figure in made:
        typer.echo(f"{figure.name:24} {figure.about}")
    typer.echo(f"{sum(len(m.files) for m in made)} files in {out}")


def _measured(out: Path, model: str, given: Given, prompts: str, tokens: int, steps: int) -> list[WrittenFigure]:
    from outrider.utils.working import working
    from outrider_lab.data import workloads
    from outrider_lab.figures import session

    questions = workloads.load(prompts)
    with working("figures") as tick:
        drafts = given.get("draft_model", ())
        llm = o.load(model, **given, draft=o.draft_to_load(model, drafts, ()))
        ids = workloads.token_ids(llm.tokenizer, questions)
        tick.expect(1 + session.pieces(llm, ids, tokens))
        tick("model loaded; toy drafts next")
        made = [session.draft_quality_figure(out, steps=steps, tick=tick)]
        about = " with ".join([model, *drafts])
        return made + session.of_model(llm, about, ids, out, tokens=tokens, tick=tick)
