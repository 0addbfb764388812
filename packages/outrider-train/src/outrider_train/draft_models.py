"""Recipes of small draft models: fresh ones, the target's first layers, and SpecInfer's sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from outrider.errors import ConfigError
from outrider.models.config import ModelConfig
from outrider_train.kinds.draft import DraftTask, draft_model, known_rows
from outrider_train.options import RULES
from outrider_train.setup import TrainingSetup
from outrider_train.target.features import FeatureSpec
from outrider_train.trainer import Trainer, TrainOptions

_WIDTH = 192  # of a fresh draft


@dataclass(frozen=True)
class DraftOptions:
    """Options of a small draft model."""

    truncate: int | None = None  # layers taken from the target; None: a fresh model of the dimensions below
    layers: int = 2
    hidden_size: int | None = None  # None: the target's with ``truncate``, else 192
    heads: int = 4
    loss: str = "kl"  # one of options.RULES

    def __post_init__(self) -> None:
        if self.loss not in RULES:
            raise ConfigError(f"loss={self.loss!r} is unknown: use {', '.join(RULES)}")
        if not 1 <= self.layers <= 128:
            raise ConfigError(f"layers={self.layers}: use 1 to 128")
        if self.hidden_size is not None and self.hidden_size < 2:
            raise ConfigError(f"hidden_size={self.hidden_size}: use 2 or more")
        if self.truncate is not None:  # heads stay the target's
            return
        width = self.hidden_size or _WIDTH
        object.__setattr__(self, "hidden_size", width)
        if self.heads < 1 or width % (2 * self.heads):
            raise ConfigError(
                f"hidden_size={width} does not divide into {self.heads} heads of an even size: change one"
            )

    def config(self, target: ModelConfig) -> ModelConfig:
        """The draft's configuration."""
        if self.truncate is not None:
            width = self.hidden_size or target.hidden_size
            if width > target.hidden_size:
                raise ConfigError(f"hidden_size={width}: the target has {target.hidden_size}, use at most that")
            return replace(target, num_layers=self.truncate, hidden_size=width)
        assert self.hidden_size is not None
        return replace(
            target,
            num_layers=self.layers,
            hidden_size=self.hidden_size,
            intermediate_size=8 * self.hidden_size // 3 // 32 * 32 or 32,
            num_heads=self.heads,
            num_kv_heads=self.heads,
            head_dim=self.hidden_size // self.heads,
            tie_embeddings=True,
        )


def draft_trainers(
    setup: TrainingSetup, options: DraftOptions, train: TrainOptions, folder: Path, *, count: int = 1, **more: Any
) -> Iterator[Trainer]:
    """One trainer in ``folder``, or ``count`` trainers in turn in ``folder/draft-1`` and so on.

    Run each to its end (and restore its best weights) before the next, which learns the rows that it misses.
    """
    config = options.config(setup.config)
    store = setup.store(FeatureSpec(None, 0 if options.loss == "ce" else setup.data.top_k))
    known: dict[int, Tensor] = {}
    for i in range(count):
        model = draft_model(setup.target, config, train.seed + i, from_target=options.truncate is not None)
        task = DraftTask(model, options.loss, setup.folder)
        batchers = setup.batchers(store, train, depth=task.max_shift, skip=known)
        run_config = {**setup.facts(), "draft": asdict(options), "number": i}
        yield Trainer(
            task, *batchers, train, folder if count == 1 else folder / f"draft-{i + 1}", run_config=run_config, **more
        )
        if i + 1 < count:
            known = known_rows(task, setup.batchers(store, train, depth=task.max_shift)[0], known)
