"""``outrider train``: make draft sources: tables, heads and draft models, and their training data."""

from __future__ import annotations

import typer

from outrider.cli.shared.help import add, print_without_command
from outrider_train.commands import answers, datastore, drafts, export, heads, table

app = typer.Typer(
    help="Train draft sources for a target: heads, draft models, tables.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.callback()(print_without_command)
add(app, "answers", answers.answers, short_help="Let the target write what drafts learn from.")
add(app, "eagle", heads.eagle, short_help="Train EAGLE's layer.")
add(app, "dflash", heads.dflash, short_help="Train a block drafter.")
add(app, "mtp", heads.mtp, short_help="Train or tune an MTP head.")
add(app, "medusa", heads.medusa, short_help="Train Medusa heads.")
add(app, "blockwise", heads.blockwise, short_help="Train heads of blockwise parallel decoding.")
add(app, "pass", heads.pass_, short_help="Train PaSS's look-ahead embeddings.")
add(app, "draft", drafts.draft, short_help="Train a small draft model.")
add(app, "boost", drafts.boost, short_help="Train a set of draft models.")
add(app, "export", export.export, short_help="Write an EAGLE-3 head for vLLM.")
add(app, "import", export.import_, short_help="Take over an EAGLE-3 head of speculators.")
add(app, "datastore", datastore.datastore, short_help="Sort answers, for suffix to copy from.")
add(app, "table", table.table, short_help="Count tokens for unigram and bigram.")
