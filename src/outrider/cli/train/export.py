"""``outrider train export | import``: an EAGLE-3 head to and from the layout of ``speculators``, which vLLM serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.train import common as c


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
    from outrider.checkpoints.catalog import resolve
    from outrider.training.export import to_speculators

    size = to_speculators(head, resolve(target, progress=True), out, verifier or target)
    typer.echo(f"{out}: {size / 1e6:.1f} MB")


def import_(
    head: Annotated[Path, typer.Argument(help="The folder of an EAGLE-3 head of the speculators library.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    target: c.Target = c.DEFAULT_MODEL,
) -> None:
    """Take over an EAGLE-3 head that the speculators library wrote, for --heads.

    Example: outrider train import their-eagle --out my-eagle --target org/target
    """
    from outrider.checkpoints.catalog import resolve
    from outrider.training.import_head import from_speculators

    config = from_speculators(head, resolve(target, progress=True), out)
    layers = ", ".join(map(str, config.feature_layers))
    typer.echo(f"{out}: an EAGLE-{'3.1' if config.norm_output else '3'} head on layers {layers}")
