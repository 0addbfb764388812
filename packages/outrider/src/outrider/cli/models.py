"""``outrider models``: list, fetch, inspect and remove models. Imports modules when a command runs."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer

from outrider.cli.shared import flags
from outrider.cli.shared.help import add, print_without_command

app = typer.Typer(help="List, fetch, inspect and remove models.", invoke_without_command=True)
app.callback()(print_without_command)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def _pulled(incomplete: str) -> list[str]:
    from outrider.weights.hub.builtin import BUILTINS, is_pulled

    return [name for name, model in BUILTINS.items() if name.startswith(incomplete) and is_pulled(model)]


def list_command(as_json: AsJson = False) -> None:
    """Show the models here, those of Ollama, LM Studio, llama.cpp and the hub's cache too, and what can be pulled."""
    from outrider.cli.listing import fits, list_all, list_lines, list_table, narrow_lines

    models = list_all()
    if as_json:
        _print_json([model.as_json() for model in models])
        return
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Column, Table
    from rich.text import Text

    headings, rows = list_table(models)
    console = Console()
    if rows and console.is_terminal and not fits(headings, rows, console.width):
        for name, facts in narrow_lines(headings, rows):
            console.print(name, highlight=False, markup=False, soft_wrap=True)
            console.print(Padding(facts, (0, 0, 0, 2)), style="dim", highlight=False, markup=False)
    elif rows:
        name, *others = headings
        table = Table(Column(name, overflow="fold", min_width=21), *others)
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
    for line in list_lines(models):
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)


def pull_command(
    names: Annotated[
        list[str],
        typer.Argument(help="Built-in names, hub ids or .gguf files.", autocompletion=flags.completer(flags.models)),
    ],
    as_json: AsJson = False,
) -> None:
    """Download and convert models, with the drafts trained for them; check every byte of those already there."""
    from outrider.weights.hub.builtin import BUILTINS
    from outrider.weights.hub.catalog import resolve
    from outrider.weights.hub.trained import fetch_all

    pulled = []
    for name in names:
        folder = resolve(name, progress=not as_json, verify=True)
        fetch_all(name, progress=not as_json)
        known = BUILTINS.get(name)
        licence, digest = (known.licence, known.sha256) if known else (None, None)
        pulled.append({"name": name, "folder": str(folder), "licence": licence, "sha256": digest})
        if not as_json:
            terms = f" (licence {licence}, SHA-256 {digest})" if known else ""
            typer.echo(f"{name}{terms}: {folder}")
    if as_json:
        _print_json(pulled)


def info_command(
    ref: Annotated[
        str,
        typer.Argument(
            help="A built-in name, folder, .gguf file or hub id.", autocompletion=flags.completer(flags.models)
        ),
    ],
    verify: Annotated[bool, typer.Option("--verify", help="Compare every byte with what was written.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a model's family, dimensions, licence, digest and folder."""
    from outrider.weights.hub.inventory import describe

    facts = describe(ref, verify=verify)
    if as_json:
        _print_json(facts)
        return
    for key, value in facts.items():
        if value is not None:
            typer.echo(f"{key.replace('_', ' '):15} {_shown(value)}")


def check_command(
    ref: Annotated[
        str,
        typer.Argument(help="A .gguf file, folder or built-in name.", autocompletion=flags.completer(flags.models)),
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a model is, whether it runs here, with which draft, in how much memory and how fast at most.

    Only headers are read. Exits with 1 if the model does not run.
    """
    from outrider.cli.check import check_model
    from outrider.cli.check_lines import check_lines

    facts = check_model(ref)
    if as_json:
        _print_json(facts)
    else:
        typer.echo("\n".join(check_lines(facts)))
    if facts["runs"] is None:
        raise typer.Exit(1)


def suggest_command(
    memory: Annotated[float | None, typer.Option(help="GB of memory; default: that free here.", min=0.1)] = None,
    as_json: AsJson = False,
) -> None:
    """Show models that people run and that fit the memory, with their forecast speed here. Nothing is fetched.

    Sizes are computed from the models' dimensions.
    """
    from outrider.cli.suggest import suggest, suggest_lines

    models = suggest(memory)
    if as_json:
        _print_json(models)
    else:
        typer.echo("\n".join(suggest_lines(models)))


def rm_command(
    names: Annotated[
        list[str], typer.Argument(help="Names as `outrider models list` shows them.", autocompletion=_pulled)
    ],
    as_json: AsJson = False,
) -> None:
    """Remove models from the caches. A .gguf file or folder itself stays; only what was made from it goes.

    Example: outrider models rm tinyllama-1.1b-chat
    """
    from outrider.weights.hub.removal import remove

    removed = []
    for name in names:
        gone = remove(name)
        removed.append(dataclasses.asdict(gone))
        if not as_json:
            typer.echo(f"{name}: {gone.bytes / 1e6:,.0f} MB freed in {gone.folder}")
    if as_json:
        _print_json(removed)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))


add(app, "list", list_command, short_help="Show the models there are, their sizes, and where they lie.")
add(app, "pull", pull_command, short_help="Fetch models, or check every byte of those here.")
add(app, "info", info_command, short_help="Show what is known of a model.")
add(app, "check", check_command, short_help="Show whether a model runs here, and how.")
add(app, "suggest", suggest_command, short_help="Show models that fit this machine's memory.")
add(app, "rm", rm_command, short_help="Remove models from the caches.")
