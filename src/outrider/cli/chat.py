"""``outrider chat``: a conversation on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import options as o
from outrider.cli.config_file import Config
from outrider.cli.generated import Given, options_from
from outrider.config import EngineConfig, SamplingParams, SpeculationParams

if TYPE_CHECKING:
    from outrider.llm import LLM

HELP = "/reset starts over, /stats shows the last answer's statistics, /exit (or Ctrl-D) leaves; Ctrl-C stops an answer"

_OPTIONS = (
    *("draft", "spec_length", "tree", "tree_nodes", "verifier", "lenience", "posterior_threshold", "posterior_alpha"),
    *("draft_model", "heads", "draft_table", *o.LOADING),
    *("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"),
)


@options_from(SpeculationParams, EngineConfig, SamplingParams, only=_OPTIONS)
def chat(
    model: o.Model = o.DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    config: Config = None,
    *,
    given: Given,
) -> None:
    """Talk with a model. Tokens are coloured as by `outrider generate`."""
    params = SamplingParams(**o.own(SamplingParams, given))
    llm = o.load(model, **o.engine(given), max_batch_size=1)
    opening = [] if system is None else [{"role": "system", "content": system}]
    llm.tokenizer.render_chat([*opening, {"role": "user", "content": ""}])  # no template: say so before the first line
    typer.echo(f"{model} · {HELP}", err=True)
    converse(llm, opening, params)


def converse(llm: LLM, opening: list[dict[str, str]], params: SamplingParams) -> None:
    """Read lines and answer them until the input ends."""
    from outrider.cli.screen import Screen, summary

    messages, screen, last = list(opening), Screen(), None
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            typer.echo()
            return
        if line in ("/exit", "/quit"):
            return
        if line == "/reset":
            messages, last = list(opening), None
        elif line == "/stats":
            typer.echo(summary(last) if last is not None else "no answer yet", err=True)
        elif line.startswith("/"):
            typer.echo(HELP, err=True)
        elif line:
            messages.append({"role": "user", "content": line})
            try:
                for step in llm.stream(messages, params):
                    screen.show(step)
            except KeyboardInterrupt:
                pass  # keep what was said so far
            screen.end()
            last = llm.last
            messages.append({"role": "assistant", "content": last.text})
