"""``outrider train eagle | dflash | mtp | medusa | blockwise | pass``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.shared import flags
from outrider.cli.shared.generated import Given, options_from
from outrider.errors import ConfigError
from outrider_train.commands import common as c
from outrider_train.options import HeadOptions

_SCORING = ("draft_vocab", "own_lm_head", "decay")
_LAYERED = ("feature_layers", *_SCORING, "window", "loss", "fresh", "start_from")


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ConfigError(f"feature-layers={text!r}: give layer counts with commas, such as 2,15,27") from None


flags.describe(
    HeadOptions,
    flags.FlagTable(
        rare="ttt_steps depth window draft_vocab own_lm_head decay",
        shown={
            "ttt_steps": "4; 1 for version 1",
            "feature_layers": "low, middle, high",
            "draft_vocab": "8192 of a large one",
            "window": "all",
        },
        read={"feature_layers": (str, _layers), "start_from": (Path, str)},
    ),
)


@c.with_shared(default_lr=1e-3, default_batch=1024)
@options_from(HeadOptions, only=("ttt_steps", "depth", *_LAYERED))
def eagle(
    shared: c.Shared,
    version: Annotated[
        str | None,
        typer.Option(
            help="3: fused features, unrolled. 3.1: with norms on both. 1: the head of EAGLE-1 and 2.", show_default="3"
        ),
    ] = None,
    *,
    given: Given,
) -> None:
    """Train EAGLE's layer, which continues the target's features (version 3, or the head of versions 1 and 2).

    Example: outrider train eagle --data prompts.jsonl --regenerate --out my-eagle
    """
    if version not in (None, "1", "3", "3.1"):
        raise ConfigError(f"version={version}: use 3 or 3.1, or 1 for the head that EAGLE-1 and EAGLE-2 share")
    if version == "1" and "feature_layers" in given:
        raise ConfigError(f"feature-layers={given['feature_layers']}: version 1 reads the last hidden state alone")
    kind, normed = "eagle" if version == "1" else "eagle3", {"3": False, "3.1": True}.get(version or "")
    _train(shared, HeadOptions(kind, normed=normed, **given), f"EAGLE-{version or 3} head")


@c.with_shared(default_lr=1e-3, default_batch=1024)
@options_from(HeadOptions, only=("heads", "layers", "selector_rank", *_LAYERED), heads=6)
def dflash(shared: c.Shared, *, given: Given) -> None:
    """Train a block drafter, whose layers guess several tokens in one pass over the target's features (DFlash).

    Example: outrider train dflash --data prompts.jsonl --regenerate --out my-block
    """
    _train(shared, HeadOptions("dflash", **given), "Block drafter")


@c.with_shared(default_lr=1e-3, default_batch=1024)
@options_from(HeadOptions, only=("heads", *_SCORING, "loss", "start_from"))
def medusa(
    shared: c.Shared,
    *,
    given: Given,
    medusa2: Annotated[
        bool, typer.Option("--medusa2", help="Tune the target too. It becomes another model: its answers change.")
    ] = False,
) -> None:
    """Train Medusa heads, one residual block for each of the tokens after the next.

    Example: outrider train medusa --data answers.jsonl --heads 4 --out my-medusa
    """
    if not medusa2:
        _train(shared, HeadOptions("medusa", **given), "Medusa heads")
        return
    if given.get("own_lm_head") or given.get("draft_vocab"):
        raise ConfigError("medusa2 uses the tuned target's own LM head: leave out --own-lm-head and --draft-vocab")
    if "loss" in given:
        raise ConfigError(f"loss={given['loss']}: medusa2 learns with kl")
    c.log(
        f"warning: Medusa-2 tunes the target. {shared.out / 'target'} will be another model, whose answers are not "
        f"those of {shared.setup.model}; only with it do these heads work"
    )
    from outrider_train.recipes import medusa2_trainer

    options = HeadOptions("medusa", **{**given, "draft_vocab": 0})
    trainer = medusa2_trainer(shared.setup, options, shared.train, shared.out, **shared.trainer_options())
    c.run(trainer, "Medusa-2 heads and target", shared.setup)


@c.with_shared(default_lr=1e-3, default_batch=1024)
@options_from(HeadOptions, only=("heads", *_SCORING, "start_from"))
def blockwise(shared: c.Shared, *, given: Given) -> None:
    """Train the heads of blockwise parallel decoding: one feed-forward layer for all positions."""
    _train(shared, HeadOptions("blockwise", **given), "Blockwise heads")


@c.with_shared(default_lr=5e-4, default_batch=1024)
@options_from(HeadOptions, only=("ttt_steps", "depth", "decay", "loss", "fresh", "start_from"))
def mtp(shared: c.Shared, *, given: Given) -> None:
    """Train the target's own kind of draft head (multi-token prediction), or tune the one in its files.

    Example: outrider train mtp --data prompts.jsonl --regenerate --out my-mtp, then --draft mtp --heads my-mtp
    """
    from outrider_train.kinds.mtp import mtp_trainer

    more: dict[str, Any] = shared.trainer_options()
    trainer, _ = mtp_trainer(shared.setup, HeadOptions("mtp", **given), shared.train, shared.out, **more)
    c.run(trainer, f"MTP head for {Path(shared.setup.model).name}", shared.setup)


@c.with_shared(default_lr=1e-2)
@options_from(HeadOptions, only=("heads", "start_from"), heads=3)
def pass_(shared: c.Shared, *, given: Given) -> None:
    """Train PaSS's look-ahead embeddings through the frozen target (slow: every step runs the target)."""
    _train(shared, HeadOptions("pass", **given), "Look-ahead embeddings")


def _train(shared: c.Shared, options: HeadOptions, what: str) -> None:
    from outrider_train.recipes import head_trainer

    more: dict[str, Any] = shared.trainer_options()
    trainer, _ = head_trainer(shared.setup, options, shared.train, shared.out, **more)
    c.run(trainer, f"{what} for {Path(shared.setup.model).name}", shared.setup)
