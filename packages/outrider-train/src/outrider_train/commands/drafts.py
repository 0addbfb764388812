"""``outrider train draft | boost``: small draft models."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from outrider.errors import ConfigError
from outrider_train.commands import common as c

Truncate = Annotated[
    int | None, typer.Option(help="Start from so many first layers of the target.", show_default="fresh weights")
]
Layers = Annotated[int, typer.Option(help="Layers of a fresh draft.")]
HiddenSize = Annotated[
    int | None,
    typer.Option(
        help="Hidden size; with --truncate, less than the target's narrows its layers.",
        show_default="192, or the target's with --truncate",
    ),
]
AttentionHeads = Annotated[int, typer.Option(help="Attention heads of a fresh draft.")]
Loss = Annotated[
    str,
    typer.Option(help="kl, reverse-kl, tv or alpha: against the target's distribution. ce: the documents' tokens."),
]


@c.with_shared(default_lr=1e-3)
def draft(
    shared: c.Shared,
    truncate: Truncate = None,
    layers: Layers = 2,
    hidden_size: HiddenSize = None,
    attention_heads: AttentionHeads = 4,
    loss: Loss = "kl",
) -> None:
    """Train a small draft model, from scratch or cut out of the target; load it with --draft-model FOLDER.

    Example: outrider train draft --data answers.jsonl --truncate 4 --loss kl --out my-draft
    """
    from outrider_train.draft_models import DraftOptions, draft_trainers

    options = DraftOptions(truncate, layers, hidden_size, attention_heads, loss)
    more: dict[str, Any] = shared.trainer_options()
    for trainer in draft_trainers(shared.setup, options, shared.train, shared.out, **more):
        c.run(trainer, f"Draft model for {shared.setup.model}", shared.setup)


@c.with_shared(default_lr=1e-3)
def boost(
    shared: c.Shared,
    drafts: Annotated[int, typer.Option(help="Draft models, each trained on what those before it miss.")] = 2,
    truncate: Truncate = None,
    layers: Layers = 2,
    hidden_size: HiddenSize = None,
    attention_heads: AttentionHeads = 4,
    loss: Loss = "kl",
) -> None:
    """Train SpecInfer's set of draft models; they draft together with --draft models.

    Example: outrider train boost --data answers.jsonl --drafts 3 --truncate 2 --out my-drafts
    """
    from outrider_train.draft_models import DraftOptions, draft_trainers

    if not 2 <= drafts <= 16:
        raise ConfigError(f"drafts={drafts}: use 2 to 16, or `outrider train draft` for one")
    if shared.setup.one_pass_in is not None:
        raise ConfigError("--one-pass is for one draft: each of a set learns from what those before it miss")
    options = DraftOptions(truncate, layers, hidden_size, attention_heads, loss)
    more: dict[str, Any] = shared.trainer_options()
    trainers = draft_trainers(shared.setup, options, shared.train, shared.out, count=drafts, **more)
    for i, trainer in enumerate(trainers, 1):
        c.run(trainer, f"Draft model {i} of {drafts} for {shared.setup.model}", shared.setup)
