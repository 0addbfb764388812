"""``outrider models``: list, pull and inspect models. Imports what it needs when a command runs."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from outrider.checkpoints.inventory import Entry

app = typer.Typer(help="List, pull and inspect models.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.command("list")
def list_command(as_json: AsJson = False) -> None:
    """Show the built-in models, and those converted or downloaded before."""
    from outrider.checkpoints.inventory import list_models

    entries = list_models()
    if as_json:
        _print_json([dataclasses.asdict(entry) for entry in entries])
        return
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(Column("name", overflow="fold", min_width=21), "kind", "parameters", "size", "licence", "pulled")
    for entry in entries:
        table.add_row(*_row(entry))
    Console().print(table)


@app.command("pull")
def pull_command(
    names: Annotated[list[str], typer.Argument(help="Built-in names, hub ids or .gguf files.")],
    as_json: AsJson = False,
) -> None:
    """Download and convert models; check every byte of those already there."""
    from outrider.checkpoints.builtin import BUILTINS
    from outrider.checkpoints.catalog import resolve

    pulled = []
    for name in names:
        folder = resolve(name, progress=not as_json, verify=True)
        known = BUILTINS.get(name)
        licence, digest = (known.licence, known.sha256) if known else (None, None)
        pulled.append({"name": name, "folder": str(folder), "licence": licence, "sha256": digest})
        if not as_json:
            terms = f" (licence {licence}, SHA-256 {digest})" if known else ""
            typer.echo(f"{name}{terms}: {folder}")
    if as_json:
        _print_json(pulled)


@app.command("info")
def info_command(
    ref: Annotated[str, typer.Argument(help="A built-in name, folder, .gguf file or hub id.")],
    verify: Annotated[bool, typer.Option("--verify", help="Compare every byte with what was written.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a model's family, dimensions, licence, digest and folder."""
    from outrider.checkpoints.inventory import describe

    facts = describe(ref, verify=verify)
    if as_json:
        _print_json(facts)
        return
    for key, value in facts.items():
        if value is not None:
            typer.echo(f"{key.replace('_', ' '):15} {_shown(value)}")


def _row(entry: Entry) -> tuple[str, ...]:
    parameters = "" if entry.parameters is None else f"{entry.parameters / 1e6:,.0f} M"
    size = "" if entry.bytes is None else f"{entry.bytes / 1e6:,.0f} MB"
    return entry.name, entry.kind, parameters, size, entry.licence or "", "yes" if entry.pulled else "no"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))
