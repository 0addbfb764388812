"""``outrider train eagle | dflash | medusa | blockwise | pass``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.errors import ConfigError
from outrider_train.commands import common as c

if TYPE_CHECKING:
    from outrider_train.setup import HeadOptions

Heads = Annotated[int, typer.Option(help="Tokens guessed beyond the next one.")]
Decay = Annotated[float, typer.Option(help="Weight of each position over that of the one before.", hidden=True)]
FeatureLayers = Annotated[
    str | None, typer.Option(help="Layers that are fused, such as 2,15,27.", show_default="low, middle, high")
]
Loss = Annotated[str, typer.Option(help="kl, adaptive, tv, alpha or reverse-kl: against the target's distribution.")]
Window = Annotated[
    int | None, typer.Option(help="Rows that its attention looks back at; 0: all.", show_default="all", hidden=True)
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Random first weights, not the target's last layer.")]
StartFrom = Annotated[Path | None, typer.Option(help="Folder of a head to train further, as on more data.")]


@c.with_shared(default_lr=1e-3, default_batch=1024)
def eagle(
    shared: c.Shared,
    version: Annotated[
        str | None,
        typer.Option(
            help="3: fused features, unrolled. 3.1: with norms on both. 1: the head of EAGLE-1 and 2.", show_default="3"
        ),
    ] = None,
    ttt_steps: Annotated[
        int | None, typer.Option(help="Steps unrolled in training.", hidden=True, show_default="4; 1 for version 1")
    ] = None,
    depth: Annotated[int, typer.Option(help="Draft positions measured.", hidden=True)] = 5,
    feature_layers: FeatureLayers = None,
    draft_vocab: c.DraftVocab = None,
    window: Window = None,
    own_lm_head: c.LmHead = False,
    decay: Decay = 0.8,
    loss: Loss = "kl",
    fresh: Fresh = False,
    start_from: StartFrom = None,
) -> None:
    """Train EAGLE's layer, which continues the target's features (version 3, or the head of versions 1 and 2).

    Example: outrider train eagle --data prompts.jsonl --regenerate --out my-eagle
    """
    from outrider_train.setup import HeadOptions

    if version not in (None, "1", "3", "3.1"):
        raise ConfigError(f"version={version}: use 3 or 3.1, or 1 for the head that EAGLE-1 and EAGLE-2 share")
    if version == "1" and feature_layers is not None:
        raise ConfigError(f"feature-layers={feature_layers}: version 1 reads the last hidden state alone")
    options = HeadOptions(
        kind="eagle" if version == "1" else "eagle3",
        normed={"3": False, "3.1": True}.get(version or ""),
        window=window,
        ttt_steps=ttt_steps,
        depth=depth,
        feature_layers=_layers(feature_layers),
        draft_vocab=draft_vocab,
        own_lm_head=own_lm_head,
        decay=decay,
        loss=loss,
        fresh=fresh,
        start_from=_folder(start_from),
    )
    _train(shared, options, f"EAGLE-{version or 3} head")


@c.with_shared(default_lr=1e-3, default_batch=1024)
def dflash(
    shared: c.Shared,
    heads: Annotated[int, typer.Option(help="Tokens guessed in one pass.")] = 6,
    layers: Annotated[int, typer.Option(help="Decoder layers.")] = 2,
    selector_rank: Annotated[
        int, typer.Option(help="Width of the codebooks that make neighbours agree; 0: none.")
    ] = 32,
    feature_layers: FeatureLayers = None,
    draft_vocab: c.DraftVocab = None,
    window: Window = None,
    own_lm_head: c.LmHead = False,
    decay: Decay = 0.8,
    loss: Loss = "kl",
    fresh: Fresh = False,
    start_from: Annotated[
        Path | None, typer.Option(help="Folder of a head to train further, or of an EAGLE-3 head to begin with.")
    ] = None,
) -> None:
    """Train a block drafter, whose layers guess several tokens in one pass over the target's features (DFlash).

    Example: outrider train dflash --data prompts.jsonl --regenerate --out my-block
    """
    from outrider_train.setup import HeadOptions

    options = HeadOptions(
        kind="dflash",
        window=window,
        heads=heads,
        layers=layers,
        selector_rank=selector_rank,
        feature_layers=_layers(feature_layers),
        draft_vocab=draft_vocab,
        own_lm_head=own_lm_head,
        decay=decay,
        loss=loss,
        fresh=fresh,
        start_from=_folder(start_from),
    )
    _train(shared, options, "Block drafter")


@c.with_shared(default_lr=1e-3, default_batch=1024)
def medusa(
    shared: c.Shared,
    heads: Heads = 4,
    draft_vocab: c.DraftVocab = None,
    own_lm_head: c.LmHead = False,
    decay: Decay = 0.8,
    loss: Loss = "kl",
    start_from: StartFrom = None,
    medusa2: Annotated[
        bool, typer.Option("--medusa2", help="Tune the target too. It becomes another model: its answers change.")
    ] = False,
) -> None:
    """Train Medusa heads, one residual block for each of the tokens after the next.

    Example: outrider train medusa --data answers.jsonl --heads 4 --out my-medusa
    """
    from outrider_train.setup import HeadOptions

    options = HeadOptions(
        kind="medusa",
        heads=heads,
        draft_vocab=0 if medusa2 else draft_vocab,
        own_lm_head=own_lm_head,
        decay=decay,
        loss=loss,
        start_from=_folder(start_from),
    )
    if not medusa2:
        _train(shared, options, "Medusa heads")
        return
    if own_lm_head or draft_vocab:
        raise ConfigError("medusa2 uses the tuned target's own LM head: leave out --own-lm-head and --draft-vocab")
    if loss != "kl":
        raise ConfigError(f"loss={loss}: medusa2 learns with kl")
    c.log(
        f"warning: Medusa-2 tunes the target. {shared.out / 'target'} will be another model, whose answers are not "
        f"those of {shared.setup.model}; only with it do these heads work"
    )
    from outrider_train.recipes import medusa2_trainer

    trainer = medusa2_trainer(shared.setup, options, shared.train, shared.out, **shared.trainer_options())
    c.run(trainer, "Medusa-2 heads and target", shared.setup)


@c.with_shared(default_lr=1e-3, default_batch=1024)
def blockwise(
    shared: c.Shared,
    heads: Heads = 4,
    draft_vocab: c.DraftVocab = None,
    own_lm_head: c.LmHead = False,
    decay: Decay = 0.8,
    start_from: StartFrom = None,
) -> None:
    """Train the heads of blockwise parallel decoding: one feed-forward layer for all positions."""
    from outrider_train.setup import HeadOptions

    options = HeadOptions(
        kind="blockwise",
        heads=heads,
        draft_vocab=draft_vocab,
        own_lm_head=own_lm_head,
        decay=decay,
        start_from=_folder(start_from),
    )
    _train(shared, options, "Blockwise heads")


@c.with_shared(default_lr=1e-2)
def pass_(shared: c.Shared, heads: Heads = 3, start_from: StartFrom = None) -> None:
    """Train PaSS's look-ahead embeddings through the frozen target (slow: every step runs the target)."""
    from outrider_train.setup import HeadOptions

    _train(shared, HeadOptions(kind="pass", heads=heads, start_from=_folder(start_from)), "Look-ahead embeddings")


def _train(shared: c.Shared, options: HeadOptions, what: str) -> None:
    from outrider_train.recipes import head_trainer

    more: dict[str, Any] = shared.trainer_options()
    trainer, _ = head_trainer(shared.setup, options, shared.train, shared.out, **more)
    c.run(trainer, f"{what} for {Path(shared.setup.model).name}", shared.setup)


def _folder(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ConfigError(f"feature-layers={text!r}: give layer counts with commas, such as 2,15,27") from None
