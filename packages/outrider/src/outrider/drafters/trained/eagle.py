"""One decoder layer continues the target's features (docs/algorithms/eagle.md)."""

from __future__ import annotations

from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.weights import HeadWeights
from outrider.drafters.trained.feature_drafter import reach_of
from outrider.drafters.trained.heads import native_target
from outrider.drafters.trained.level_drafter import LevelDrafter
from outrider.drafters.trained.native_eagle import NativeEagle
from outrider.drafters.trained.runner import HeadRunner
from outrider.extensions import extension


def build(context: DrafterContext) -> Drafter:
    """The source ``eagle``."""
    head = context.heads["eagle"]
    if not isinstance(head, HeadWeights):
        made: Drafter = extension("backends", "torch", "a head on torch").build_eagle(context)
        return made
    target = native_target(context.target)
    runner = NativeEagle(head, target, context.cache)
    drafter = EagleDrafter(runner, head.config, vocab_size=context.vocab_size)
    drafter.keep_rows(context.sessions, target.config.hidden_size)
    return drafter


class EagleDrafter(LevelDrafter):
    """EAGLE-1, 2 and 3 (Li et al. 2024, 2024, 2025), depending on the head's kind and the request's tree."""

    def __init__(self, runner: HeadRunner, config: HeadConfig, *, vocab_size: int) -> None:
        """``config``: of the head that ``runner`` runs. ``vocab_size``: logits from this column on are padding."""
        super().__init__(
            runner,
            config.feature_layers or (config.target.num_layers,),
            source="eagle",
            vocab_size=vocab_size,
            reach=reach_of(config),
            learned=config.acceptance,
            calibration=config.calibration,
        )
