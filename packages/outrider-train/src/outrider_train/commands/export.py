"""``outrider train export | import``: an EAGLE-3 head to and from the layout of ``speculators``, which vLLM serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider_train.commands import common as c


def export(
    head: Annotated[Path, typer.Argument(help="The folder of an EAGLE-3 head.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    target: c.Target = c.DEFAULT_MODEL,
    verifier: Annotated[
        str | None, typer.Option(help="The target's name where it will be served.", show_default="as --target")
    ] = None,
) -> None:
    """Write an EAGLE-3 head as `vllm serve` and the speculators library read it.

    Example: outrider train export my-eagle --out my-eagle-vllm --verifier HuggingFaceTB/SmolLM2-135M-Instruct
    """
    from outrider.weights.hub.catalog import resolve
    from outrider_train.published.export import to_speculators

    size = to_speculators(head, resolve(target, progress=True), out, verifier or target)
    typer.echo(f"{out}: {size / 1e6:.1f} MB")


def import_(
    head: Annotated[str, typer.Argument(help="A published EAGLE-3 or DFlash head: a folder or hub id.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    target: c.Target = c.DEFAULT_MODEL,
) -> None:
    """Convert a published head, to train it further. For drafting, --heads takes it as published.

    Example: outrider train import their-eagle --out my-eagle --target org/target
    """
    from outrider.drafters.heads.find import find_head
    from outrider.weights.hub.catalog import resolve
    from outrider_train.published.import_head import import_head

    config = import_head(find_head(head), resolve(target, progress=True), out)
    name = "DFlash" if config.kind == "diffusion" else f"EAGLE-{'3.1' if config.norm_output else '3'}"
    typer.echo(f"{out}: {name}, on layers {', '.join(map(str, config.feature_layers))}")
