"""The head that the model's own files bring goes on from its hidden states (docs/algorithms/mtp.md)."""

from __future__ import annotations

from dataclasses import replace

from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.trained.heads import native_target
from outrider.drafters.trained.level_drafter import LevelDrafter
from outrider.drafters.trained.native_mtp import NativeMtp


def build(context: DrafterContext) -> Drafter:
    """The source ``mtp``."""
    target = native_target(context.target)
    runner = NativeMtp(context.heads["mtp"], target, replace(context.cache, prefix_reuse=False))
    return LevelDrafter(runner, (target.config.num_layers,), source="mtp", vocab_size=context.vocab_size)
