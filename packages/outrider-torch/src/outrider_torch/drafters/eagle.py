"""EAGLE and block drafters whose layers torch computes: on GPUs, and for targets of other backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.trained import block, eagle
from outrider.drafters.trained.heads import is_native
from outrider.verify.draft import Draft
from outrider_torch.drafters.diffusion import DiffusionDrafter
from outrider_torch.drafters.eagle_runner import TorchEagle
from outrider_torch.drafters.selector import TorchSelector
from outrider_torch.drafters.torch_target import torch_target
from outrider_torch.heads import head_weights
from outrider_torch.heads.dflash import BlockHead
from outrider_torch.heads.diffusion import DiffusionHead
from outrider_torch.heads.dspark import DSparkHead
from outrider_torch.heads.eagle import EagleLayer


class TorchEagleDrafter(eagle.EagleDrafter):
    """As ``EagleDrafter``, without gradients."""

    @torch.inference_mode()
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return super().propose(requests, budgets)


class TorchBlockDrafter(block.BlockDrafter):
    """As ``BlockDrafter``, without gradients."""

    @torch.inference_mode()
    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        return super().propose(requests, budgets)


def build_eagle(context: DrafterContext) -> Drafter:
    """The source ``eagle`` with a torch head. The drafter takes ownership of the head and packs its layers."""
    head, target = context.heads["eagle"], context.require_target()[0]
    assert isinstance(head, EagleLayer)
    if is_native(head.config, target):
        return eagle.build(replace(context, heads={"eagle": head_weights(head)}))
    runner = TorchEagle(head, torch_target(target), replace(context.cache, prefix_reuse=False))
    return TorchEagleDrafter(runner, head.config, vocab_size=context.vocab_size)


def build_dspark(context: DrafterContext) -> Drafter:
    """The source ``dspark``, with a torch head as in ``build_eagle``."""
    head, target = context.heads["dspark"], context.require_target()[0]
    assert isinstance(head, DSparkHead)
    return DiffusionDrafter(target, head, vocab_size=context.vocab_size, cache=context.cache)


def build_dflash(context: DrafterContext) -> Drafter:
    """The source ``dflash``, with a torch head as in ``build_eagle``."""
    head, target = context.heads["dflash"], context.require_target()[0]
    if isinstance(head, DiffusionHead):
        return DiffusionDrafter(target, head, vocab_size=context.vocab_size, cache=context.cache)
    assert isinstance(head, BlockHead)
    if is_native(head.config, target):
        return block.build(replace(context, heads={"dflash": head_weights(head)}))
    target, c = torch_target(target), head.config
    masks = torch.zeros(c.heads, 2, c.hidden_size, device=target.device, dtype=target.dtype)
    masks[1:] = head.masks.detach()
    selector = TorchSelector(head, target) if c.selector_rank else None
    runner = TorchEagle(head, target, replace(context.cache, prefix_reuse=False))
    return TorchBlockDrafter(runner, selector, masks, c, vocab_size=context.vocab_size)
