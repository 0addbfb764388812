"""``outrider train table``: counts of tokens, for the sources unigram and bigram."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.shared import options as o
from outrider.errors import ConfigError


def table(
    texts: Annotated[list[Path], typer.Argument(help="UTF-8 text files of the kind that will be generated.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The .safetensors file to write.")],
    model: o.Model = o.DEFAULT_MODEL,
) -> None:
    """Count single tokens and pairs, for the draft sources unigram and bigram.

    Example: outrider train table notes.txt -o notes.safetensors, then outrider generate --draft bigram --draft-table
    notes.safetensors --raw -p "..."
    """
    contents = [_read(path) for path in texts]
    from outrider.tokenizer.tokenizer import Tokenizer
    from outrider.weights.hub.catalog import resolve
    from outrider_drafters.draft_table import count

    tokenizer = Tokenizer.from_folder(resolve(model, progress=True))
    tokens = [token for text in contents for token in tokenizer.encode(text, add_special_tokens=False)]
    counted = count(tokens, tokenizer.vocab_size)
    counted.save(out)
    typer.echo(
        f"{out}: {counted.trained_on:,} tokens, {len(counted.bigram_tokens):,} pairs, {out.stat().st_size / 1e6:.1f} MB"
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
