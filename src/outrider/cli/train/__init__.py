"""``outrider train``: make draft sources: tables, heads and draft models."""

from __future__ import annotations

import typer

from outrider.cli.train import drafts, export, heads, table

app = typer.Typer(help="Train draft sources for a target: heads, draft models, tables.", no_args_is_help=True)
app.command("eagle")(heads.eagle)
app.command("medusa")(heads.medusa)
app.command("blockwise")(heads.blockwise)
app.command("pass")(heads.pass_)
app.command("draft")(drafts.draft)
app.command("boost")(drafts.boost)
app.command("export")(export.export)
app.command("table")(table.table)
