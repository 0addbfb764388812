"""``outrider chat``: a conversation on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options as o
from outrider.cli.config_file import Config
from outrider.config import EngineConfig, SamplingParams

if TYPE_CHECKING:
    from outrider.llm import LLM

HELP = "/reset starts over, /stats shows the last answer's statistics, /exit (or Ctrl-D) leaves; Ctrl-C stops an answer"


def chat(
    model: o.Model = o.DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    config: Config = None,
    draft: o.Draft = None,
    draft_model: o.DraftModel = None,
    draft_table: o.DraftTable = None,
    heads: o.Heads = None,
    spec_length: o.SpecLength = o.ENGINE.spec_length,
    tree: o.Tree = None,
    tree_nodes: o.TreeNodes = o.ENGINE.tree_nodes,
    verifier: o.Verifier = o.ENGINE.verifier,
    lenience: o.Lenience = None,
    posterior_threshold: o.PosteriorThreshold = None,
    posterior_alpha: o.PosteriorAlpha = None,
    max_tokens: o.MaxTokens = o.SAMPLING.max_tokens,
    temperature: o.Temperature = o.SAMPLING.temperature,
    top_k: o.TopK = o.SAMPLING.top_k,
    top_p: o.TopP = o.SAMPLING.top_p,
    min_p: o.MinP = o.SAMPLING.min_p,
    repetition_penalty: o.RepetitionPenalty = o.SAMPLING.repetition_penalty,
    seed: o.Seed = None,
    dtype: o.DType = o.ENGINE.dtype,
    draft_dtype: o.DraftDType = o.ENGINE.dtype,
    device: o.Device = o.ENGINE.device,
    threads: o.Threads = None,
) -> None:
    """Talk with a model. Tokens are coloured as by `outrider generate`."""
    given: dict[str, Any] = dict(locals())
    params = SamplingParams(**o.own(SamplingParams, given))
    given |= {"draft": o.draft_or_auto(draft, draft_model), "draft_model": draft_model or None}
    llm = o.load(**o.own(EngineConfig, given | {"heads": heads or (), "max_batch_size": 1}))
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
