"""``outrider train datastore``: answers that the source suffix copies from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.shared import options as o
from outrider.errors import ConfigError
from outrider_train.commands.common import Data


def datastore(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .safetensors file to write.")],
    model: o.Model = o.DEFAULT_MODEL,
    as_json: o.AsJson = False,
) -> None:
    """Index answers by the text before each token, for the draft source suffix.

    It takes seconds: nothing is trained. Any texts similar to the model's answers will do; its own
    answers are best.

    Example: outrider train answers --tokens 500k --out answers, then outrider train datastore --data answers -o
    answers.safetensors, then outrider generate --datastore answers.safetensors -p "..."
    """
    from outrider.config import ModelOptions
    from outrider.drafters.datastore import collect
    from outrider.drafters.heads.fingerprint import target_fingerprint
    from outrider.tokenizer.tokenizer import Tokenizer
    from outrider.weights.hub.catalog import resolve
    from outrider.weights.loader import load_model
    from outrider_train.data.documents import read_data

    folder = resolve(model, progress=True)
    tokenizer = Tokenizer.from_folder(folder)
    documents = [line.document for path in data for line in read_data(path, tokenizer)]
    if None in documents:
        raise ConfigError(f"{data[0]} has prompts without answers: answer them with `outrider train answers --prompts`")
    target = load_model(folder, ModelOptions())
    vocab_size = min(tokenizer.vocab_size, target.config.vocab_size)
    texts = ((d.ids[: d.start], d.ids[d.start :]) for d in documents if d is not None)
    store = collect(texts, vocab_size, target_fingerprint(target).digest)
    store.save(out)
    size = out.stat().st_size
    found = {"datastore": str(out), "answers": store.origin.texts, "tokens": len(store), "bytes": size}
    line = f"{out}: {store.origin.texts:,} answers, {len(store):,} tokens, {size / 1e6:.1f} MB"
    typer.echo(json.dumps(found) if as_json else line)
